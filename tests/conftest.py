"""Fixtures for every test: a user cache of its own, and an engine on a tiny random llama."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ragblend.engine import Engine
from tests import tiny

torch.set_num_threads(1)  # tiny models gain nothing from more, and threads that wait spin


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user cache, so that nothing of earlier runs is found."""
    monkeypatch.setenv("RAGBLEND_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def tiny_engine() -> Engine:
    """An engine on a tiny random llama with a byte-level tokenizer: 512 positions of context."""
    return Engine.from_model(tiny.family("llama"), tiny.tokenizer(), name="tiny-llama")
