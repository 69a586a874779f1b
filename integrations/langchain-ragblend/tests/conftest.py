"""Engines on tiny random models, and libraries made of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

import tiny  # of the repository's own tests
from ragblend import Engine, Library

TOOL_TEMPLATE = (Path(__file__).parent / "qwen2.5.jinja").read_text()

torch.set_num_threads(1)  # tiny models gain nothing from more, and threads that wait spin


@pytest.fixture(scope="session")
def engine() -> Engine:
    """A random llama with one token a byte, a chat template without tools and room for 4,096 tokens."""
    return tiny_engine()


@pytest.fixture(scope="session")
def engine_with_tools() -> Engine:
    """The same model with a chat template that has tools, in the form of Qwen2.5."""
    return tiny_engine(chat_template=TOOL_TEMPLATE)


@pytest.fixture
def library(tmp_path: Path, engine: Engine) -> Iterator[Library]:
    with Library.open(tmp_path / "test.rag", engine=engine) as opened:
        yield opened


def tiny_engine(seed: int = 0, chat_template: str = tiny.CHAT_TEMPLATE) -> Engine:
    return Engine.from_model(tiny_model(seed), tiny.tokenizer(chat_template), name=f"tiny-{seed}")


def tiny_model(seed: int = 0) -> PreTrainedModel:
    return tiny.family("llama", seed, max_position_embeddings=4096, num_hidden_layers=2)
