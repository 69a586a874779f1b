"""LlamaIndex's own query and chat engines, unmodified, reuse KV from the second question on.

Whole nodes once they are precomputed; paragraphs learned from the first question otherwise.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from llama_index.core import Settings, SummaryIndex, VectorStoreIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.schema import Document, MetadataMode, NodeWithScore, TextNode
from watching import Watcher

from llama_index.llms.ragblend import PrecomputeKV, RagBlend

PARAGRAPH = (
    "Paragraph {p} of section {s}: the part number is {s}{p}. It is kept in hall {hall}, on the shelf behind the door, "
    "and whoever takes one writes it down."
)
TEXTS = ["\n\n".join(PARAGRAPH.format(p=p, s=s, hall=9 - p) for p in range(3)) for s in range(5)]
CONTEXT_TOKENS = sum(len(text) for text in TEXTS)  # the tiny model has a token a byte
FIRST, SECOND = "What is the part number of section three?", "And in which hall is it kept?"


@pytest.fixture
def index(embed_model) -> VectorStoreIndex:
    documents = [Document(text=text, id_=f"d{n}") for n, text in enumerate(TEXTS)]
    return VectorStoreIndex.from_documents(documents, embed_model=embed_model)


def ask(engine: Any, question: str, llm: RagBlend) -> list[dict[str, Any]]:
    """``raw`` of each call that a question took, once what it taught is in the library."""
    with Watcher() as watcher:
        engine.query(question) if hasattr(engine, "query") else engine.chat(question)
    assert llm.library.wait(60)
    return watcher.answers


def total(raws: list[dict[str, Any]], name: str) -> int:
    return sum(raw[name] for raw in raws)


@pytest.mark.parametrize("mode", ["compact", "tree_summarize", "accumulate", "refine"])
def test_the_second_question_reuses_what_the_first_one_read(llm, index, mode):
    engine = index.as_query_engine(llm=llm, similarity_top_k=5, response_mode=ResponseMode(mode))
    first = ask(engine, FIRST, llm)
    assert total(first, "learning") > 0
    second = ask(engine, SECOND, llm)
    assert len(second) == len(first)
    assert total(second, "hits") >= 15
    assert total(second, "matched_tokens") >= 0.9 * CONTEXT_TOKENS
    assert sum(raw["usage"]["cached_tokens"] for raw in second) >= 0.9 * CONTEXT_TOKENS


def test_reuse_does_not_depend_on_the_order_of_documents(llm, embed_model):
    shuffled = random.Random(3).sample(TEXTS, len(TEXTS))
    for texts in (TEXTS, shuffled):
        index = SummaryIndex.from_documents([Document(text=text) for text in texts])
        raws = ask(index.as_query_engine(llm=llm), FIRST, llm)
    assert total(raws, "matched_tokens") >= 0.9 * CONTEXT_TOKENS


def test_nodes_that_are_precomputed_are_whole_chunks_from_the_first_question_on(llm, embed_model):
    documents = [Document(text=text, metadata={"section": n}) for n, text in enumerate(TEXTS)]
    pipeline = IngestionPipeline(transformations=[SentenceSplitter(chunk_size=256), PrecomputeKV(llm), embed_model])
    nodes = pipeline.run(documents=documents)
    index = VectorStoreIndex(nodes, embed_model=embed_model)
    [raw] = ask(index.as_query_engine(llm=llm, similarity_top_k=5), FIRST, llm)
    assert raw["hits"] == len(nodes) == 5
    assert raw["matched_tokens"] == sum(len(node.get_content(MetadataMode.LLM)) for node in nodes)


@pytest.mark.parametrize("mode", ["context", "condense_plus_context", "condense_question"])
def test_a_chat_engine_reuses_over_several_turns(llm, index, mode):
    engine = index.as_chat_engine(llm=llm, chat_mode=mode, similarity_top_k=5)
    turns = [ask(engine, question, llm) for question in (FIRST, SECOND, "Who says so?")]
    for turn in turns[1:]:
        assert total(turn[-1:], "matched_tokens") >= 0.9 * CONTEXT_TOKENS
        assert total(turn[-1:], "hits") >= 15


def test_streaming_and_asynchronous_engines_reuse_as_well(llm, index):
    import asyncio

    llm.ratio = 1.0  # what is reused makes no difference to the text then
    engine = index.as_query_engine(llm=llm, similarity_top_k=5, streaming=True)
    with Watcher() as watcher:
        text = "".join(engine.query(FIRST).response_gen)
        assert llm.library.wait(60)
        assert "".join(engine.query(FIRST).response_gen) == text != ""

        async def later() -> str:
            return "".join([piece async for piece in (await engine.aquery(FIRST)).async_response_gen()])

        assert asyncio.run(later())
    _, second, third = watcher.answers
    assert second["hits"] == third["hits"] >= 15


def test_learning_can_be_switched_off(engine, index):
    with RagBlend(engine=engine, max_tokens=4, learn="off") as llm:
        query_engine = index.as_query_engine(llm=llm, similarity_top_k=5)
        assert total(ask(query_engine, FIRST, llm), "learning") == 0
        assert total(ask(query_engine, SECOND, llm), "hits") == 0


def test_settings_llm_is_enough(llm, embed_model, monkeypatch):
    monkeypatch.setattr(Settings, "_llm", llm)
    monkeypatch.setattr(Settings, "_embed_model", embed_model)
    index = VectorStoreIndex.from_documents([Document(text=text) for text in TEXTS])
    engine = index.as_query_engine(similarity_top_k=5)
    ask(engine, FIRST, llm)
    assert total(ask(engine, SECOND, llm), "matched_tokens") >= 0.9 * CONTEXT_TOKENS


def test_an_answer_over_reused_text_equals_the_full_one(llm, index):
    """With every reused token recomputed, blending is full prefill."""
    llm.ratio = 1.0
    engine = index.as_query_engine(llm=llm, similarity_top_k=5)
    fresh = engine.query(FIRST).response
    assert llm.library.wait(60)
    with Watcher() as watcher:
        assert engine.query(FIRST).response == fresh != ""
    assert watcher.answers[0]["hits"] >= 15


def test_two_hundred_documents_are_read_in_several_calls(engine, embed_model, monkeypatch):
    """More than the context holds: LlamaIndex repacks, as far as it counts in the model's own tokens."""
    from setting import make_engine

    small = make_engine()
    monkeypatch.setattr(small.adapter, "context_length", 4096)
    with RagBlend(engine=small, max_tokens=8) as llm:
        monkeypatch.setattr(Settings, "_tokenizer", llm.tokenize)
        monkeypatch.setattr("llama_index.core.global_tokenizer", llm.tokenize)
        texts = [f"Document {n} says that the number of the shelf is {n}, and nothing else." for n in range(200)]
        index = SummaryIndex([TextNode(text=text) for text in texts])
        raws = ask(index.as_query_engine(llm=llm), FIRST, llm)
    assert len(raws) >= 4
    assert max(raw["usage"]["prompt_tokens"] for raw in raws) <= 4096 - 8


def nodes_of(response) -> list[NodeWithScore]:
    return response.source_nodes


def test_sources_are_llama_indexs_own(llm, index):
    response = index.as_query_engine(llm=llm, similarity_top_k=2).query(FIRST)
    assert len(nodes_of(response)) == 2
    assert all(node.score is not None for node in nodes_of(response))
