"""A model in a folder, small enough to be loaded by several processes, and systems of every kind of failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tiny


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny.family("llama", max_position_embeddings=1024).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder
