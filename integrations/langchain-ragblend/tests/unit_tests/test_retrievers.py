"""The retriever beyond LangChain's suite."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from langchain_ragblend import ChatRagBlend, RagBlendRetriever, RagBlendVectorStore
from ragblend.errors import ConfigError, LibraryError, PathNotFoundError

pytestmark = pytest.mark.real_model  # the embedded embedder


@pytest.fixture
def filled(library, tmp_path):
    (tmp_path / "manual.md").write_text(
        "# Manual\n\n## Warranty\n\nThe warranty of the robot lasts two years from the day of purchase.\n\n"
        "## Battery\n\nThe battery is charged in ninety minutes, and holds for two hours of mowing.\n"
    )
    library.add([tmp_path / "manual.md"])
    return library


def test_documents_read_as_the_model_reads_them_and_say_where_they_are_from(filled, tmp_path):
    (document,) = RagBlendRetriever(library=filled, k=1).invoke("How long does the warranty last?")
    assert document.page_content.startswith("[Manual > Warranty]\nThe warranty of the robot")
    assert document.metadata["source"] == str(tmp_path / "manual.md")
    assert (document.metadata["title"], document.metadata["heading"]) == ("Manual", "Warranty")


def test_a_chain_that_stuffs_them_hits_the_indexed_kv(filled):
    llm = ChatRagBlend(library=filled, max_tokens=4)
    documents = RagBlendRetriever(library=filled).invoke("How long does the warranty last?")
    stuffed = "\n\n".join(document.page_content for document in documents)
    for told in (
        llm.invoke(f"{stuffed}\n\nHow long?").response_metadata,
        llm.invoke("How long?", documents=documents).response_metadata,
    ):
        assert (told["hits"], told["misses"]) == (len(documents), 0)


def test_a_folder_is_opened_read_only_and_without_a_model(filled):
    with pytest.raises(PathNotFoundError, match="no library"):
        RagBlendRetriever(library=filled.folder / "other")
    retriever = RagBlendRetriever(library=filled.folder, k=1)
    assert len(retriever.invoke("battery")) == 1
    retriever.close()


def test_a_threshold_leaves_out_what_is_far(filled):
    assert RagBlendRetriever(library=filled, score_threshold=0.99).invoke("How is the weather?") == []
    for not_a_cosine in (5, -1.5, float("nan")):
        with pytest.raises(ValidationError, match="score_threshold"):
            RagBlendRetriever(library=filled, score_threshold=not_a_cosine)


def test_the_best_document_may_come_last(filled, tmp_path):
    (tmp_path / "garden.txt").write_text("Grass grows from the base of its leaves.")
    filled.add([tmp_path / "garden.txt"])
    first = RagBlendRetriever(library=filled).invoke("How long does the warranty last?")
    last = RagBlendRetriever(library=filled, order="best-last").invoke("How long does the warranty last?")
    assert RagBlendRetriever(library=filled).invoke("How long does the warranty last?", order="best-last") == last
    assert len(first) == 2
    assert [document.page_content for document in last] == [document.page_content for document in reversed(first)]
    scores = [document.metadata.pop("relevance_score") for document in last]
    assert scores == sorted(scores)
    assert last == first[::-1], "and best-first has no scores: documents found twice must be equal"


async def test_arguments_of_one_call_count_without_waiting_too(filled, tmp_path):
    (tmp_path / "garden.txt").write_text("Grass grows from the base of its leaves.")
    filled.add([tmp_path / "garden.txt"])
    retriever = RagBlendRetriever(library=filled)
    asked = "How long does the warranty last?"
    assert await retriever.ainvoke(asked) == retriever.invoke(asked)
    assert await retriever.ainvoke(asked, k=1) == retriever.invoke(asked)[:1]
    assert await retriever.ainvoke(asked, order="best-last") == retriever.invoke(asked, order="best-last")
    with pytest.raises(ConfigError, match="unknown arguments: filter"):
        await retriever.ainvoke(asked, filter={})


def test_the_score_of_a_text_that_was_given_comes_too(library):
    RagBlendVectorStore(library).add_texts(["The warranty lasts two years.", "Grass grows."], [{"source": "a"}, {}])
    retriever = RagBlendRetriever(library=library, order="best-last")
    found = retriever.invoke("How long is the warranty?")
    assert [document.page_content for document in found] == ["Grass grows.", "The warranty lasts two years."]
    assert found[1].metadata.pop("relevance_score") > found[0].metadata["relevance_score"]
    assert found[1].metadata == {"source": "a"}


def test_nothing_indexed_is_said(library):
    with pytest.raises(LibraryError, match="nothing is indexed"):
        RagBlendRetriever(library=library).invoke("battery")


def test_bad_arguments_are_refused(filled):
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        RagBlendRetriever(library=filled, k=0)
    with pytest.raises(ValueError, match="score_treshold"):
        RagBlendRetriever(library=filled, score_treshold=1)
    with pytest.raises(ValueError, match="'best-last', 'best-first' or 'document'"):
        RagBlendRetriever(library=filled, order="worst")
    with pytest.raises(ConfigError, match="k must be at least 1"):
        RagBlendRetriever(library=filled).invoke("battery", k=0)
    with pytest.raises(ConfigError, match="order must be one of best-last, best-first, document"):
        RagBlendRetriever(library=filled).invoke("battery", order="worst")
    with pytest.raises(ConfigError, match="unknown arguments: filter"):
        RagBlendRetriever(library=filled).invoke("battery", filter={})
