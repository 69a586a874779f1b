"""Fixtures for every test: a user cache of its own, and an engine on a tiny random llama."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ragblend.engine import Engine
from tests import tiny

# Their judgements hold under `python -O` too. Here, before anything can import them.
pytest.register_assert_rewrite("tests.store.faults", "tests.store.power")
torch.set_num_threads(1)  # tiny models gain nothing from more, and threads that wait spin


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long versions out unless they are asked for by name (``-m long``)."""
    if "long" not in config.option.markexpr:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("long")])
        items[:] = [item for item in items if not item.get_closest_marker("long")]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user cache, so that nothing of earlier runs is found."""
    monkeypatch.setenv("RAGBLEND_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    """A namespace's key, 5b5b... in hexadecimal."""
    path = tmp_path / "key"
    path.write_text("5b" * 32 + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: hundreds of syncs of a real disk would prove nothing more."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.fixture(scope="session")
def tiny_engine() -> Engine:
    """An engine on a tiny random llama with a byte-level tokenizer: 512 positions of context."""
    return Engine.from_model(tiny.family("llama"), tiny.tokenizer(), name="tiny-llama")
