"""These tests run Triton's interpreter, which a process must ask for before it imports Triton.

So they are collected only where that is so; ``tests/kernels/test_interpreted.py`` runs them in processes of
their own. By hand: ``TRITON_INTERPRET=1 python -m pytest tests/kernels/interpreted``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["test_*.py"]


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """torch fills what ``empty`` returns with NaN, so that a number that no kernel wrote shows."""
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)
