"""The chunks of an indexed library as nodes, each exactly the text whose KV is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import MetadataMode
from setting import TEXTS, WordEmbedding
from watching import Watcher

from llama_index.llms.ragblend import RagBlend
from llama_index.response_synthesizers.ragblend import RagBlendSynthesizer
from llama_index.retrievers.ragblend import RagBlendRetriever
from ragblend import Library
from ragblend.errors import ConfigError, LibraryError, PathNotFoundError

QUESTION = "How long does the warranty of the Heron last?"


class Words:
    """The tests' embedding, as a library takes it."""

    name, digest = "words", "words"

    def embed_chunks(self, texts) -> np.ndarray:
        return np.stack([self.embed_question(text) for text in texts])

    def embed_question(self, text: str) -> np.ndarray:
        vector = np.array(WordEmbedding().get_text_embedding(text), np.float32)
        return vector / np.linalg.norm(vector)


@pytest.fixture
def library(engine, tmp_path: Path) -> Iterator[Library]:
    folder = tmp_path / "docs"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.md").write_text(f"# Page {number}\n\n## Facts\n\n{text}\n")
    with Library.open(tmp_path / "library", engine=engine, embedder=Words()) as opened:
        opened.add(folder)
        yield opened


def test_chunks_come_as_scored_nodes_best_first(library):
    found = RagBlendRetriever(library, similarity_top_k=4).retrieve(QUESTION)
    assert "six years" in found[0].node.get_content()
    assert [node.score for node in found] == sorted((node.score for node in found), reverse=True)
    assert found[0].metadata["title"] == "Page 1"
    assert found[0].metadata["heading"] == "Facts"
    assert found[0].node.ref_doc_id == found[0].metadata["document"]
    assert found[0].metadata["document"].endswith("1.md")
    assert len({node.node_id for node in found}) == 4


def test_the_best_node_may_come_last(library):
    first = RagBlendRetriever(library, similarity_top_k=4).retrieve(QUESTION)
    last = RagBlendRetriever(library, similarity_top_k=4, order="best-last").retrieve(QUESTION)
    assert [node.node_id for node in last] == [node.node_id for node in reversed(first)]


def test_the_llm_receives_the_chunk_as_it_was_prefilled(library):
    [node] = RagBlendRetriever(library, similarity_top_k=1).retrieve(QUESTION)
    assert node.get_content(MetadataMode.LLM) == f"[Page 1 > Facts]\n{TEXTS[1]}"
    assert node.get_content(MetadataMode.NONE) == TEXTS[1]


@pytest.mark.parametrize("apart", [True, False])
def test_the_first_question_reuses_the_index(library, apart):
    llm = RagBlend(library=library, max_tokens=8)
    retriever = RagBlendRetriever(llm, similarity_top_k=4)
    synthesizer = RagBlendSynthesizer(llm) if apart else None
    engine = RetrieverQueryEngine.from_args(retriever, llm=llm, response_synthesizer=synthesizer)
    with Watcher() as watcher:
        assert engine.query(QUESTION).response
    # Joined by blank lines, the last chunk stands there without the one that it was prefilled with.
    assert (watcher.answers[0]["hits"], watcher.answers[0]["misses"]) == (4, 0)


def test_it_retrieves_asynchronously(library):
    retriever = RagBlendRetriever(library, similarity_top_k=2)
    assert asyncio.run(retriever.aretrieve(QUESTION)) == retriever.retrieve(QUESTION)


def test_bad_input_is_refused(library, tmp_path):
    with pytest.raises(ConfigError, match="similarity_top_k"):
        RagBlendRetriever(library, similarity_top_k=0)
    with pytest.raises(ConfigError, match="order must be one of"):
        RagBlendRetriever(library, order="worst")
    with pytest.raises(PathNotFoundError):
        RagBlendRetriever(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="empty"):
        RagBlendRetriever(library).retrieve("  ")
    with (
        Library.open(tmp_path / "new", embedder=Words()) as empty,
        pytest.raises(LibraryError, match="nothing is indexed"),
    ):
        RagBlendRetriever(empty).retrieve(QUESTION)
