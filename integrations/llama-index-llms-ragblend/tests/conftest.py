"""Fixtures: a chat model with tools and one without, each with a library of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from llama_index.core.schema import Document, TextNode
from setting import TEXTS, TOOL_TEMPLATE, WordEmbedding, make_engine

from llama_index.llms.ragblend import RagBlend
from ragblend import Engine

torch.set_num_threads(1)  # tiny models gain nothing from more, and threads that wait spin


@pytest.fixture(scope="session")
def engine() -> Engine:
    """A chat model that knows no tools."""
    return make_engine()


@pytest.fixture(scope="session")
def tool_engine() -> Engine:
    """A chat model whose template has tools."""
    return make_engine(TOOL_TEMPLATE)


@pytest.fixture
def llm(engine: Engine, tmp_path: Path) -> Iterator[RagBlend]:
    with RagBlend(engine=engine, library=tmp_path / "library", max_tokens=12) as opened:
        yield opened


@pytest.fixture
def tool_llm(tool_engine: Engine, tmp_path: Path) -> Iterator[RagBlend]:
    with RagBlend(engine=tool_engine, library=tmp_path / "library", max_tokens=200) as opened:
        yield opened


@pytest.fixture
def embed_model() -> WordEmbedding:
    return WordEmbedding()


@pytest.fixture
def documents() -> list[Document]:
    return [Document(text=text, id_=f"document-{number}") for number, text in enumerate(TEXTS)]


@pytest.fixture
def nodes(embed_model: WordEmbedding) -> list[TextNode]:
    """Nodes with metadata that the LLM sees, and with embeddings."""
    made = [
        TextNode(text=text, id_=f"node-{n}", metadata={"page": n, "kind": "odd" if n % 2 else "even"})
        for n, text in enumerate(TEXTS)
    ]
    for node in made:
        node.embedding = embed_model.get_text_embedding(node.get_content())
    return made
