"""All the ways in which documents reach the model as chunks of their own."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.content import create_plaintext_block

from langchain_ragblend import ChatRagBlend, PrecomputeKV
from langchain_ragblend._documents import passages_of
from langchain_ragblend._messages import messages_of
from ragblend import Message, Passage
from ragblend.errors import ConfigError

WARRANTY = "The warranty of the robot lasts two years from the day of purchase."
BATTERY = "The battery is charged in ninety minutes, and holds for two hours."
DOCUMENTS = [Document(WARRANTY, metadata={"source": "w.md"}), Document(BATTERY, id="b")]
PASSAGES = (Passage(WARRANTY, document="w.md"), Passage(BATTERY, document="b"))
SYSTEM = Message("system", ("Be exact.",))


@pytest.fixture(scope="module")
def llm(engine):
    with ChatRagBlend(engine=engine, max_tokens=4) as made:
        PrecomputeKV(made).transform_documents(DOCUMENTS)
        yield made


def converted(messages, documents=None):
    return messages_of(messages, documents, "Be exact.")


@pytest.mark.parametrize(
    ("metadata", "score"),
    [
        ({}, 0.0),
        ({"relevance_score": 0.25}, 0.25),
        ({"relevance_score": np.float32(0.5), "score": 3.0}, 0.5),
        ({"score": 0.5}, 0.0),  # perhaps a distance
        ({"relevance_score": "high"}, 0.0),
        ({"relevance_score": float("nan")}, 0.0),
        ({"relevance_score": 10**400}, 0.0),
        ({"relevance_score": True}, 0.0),
    ],
)
def test_the_score_comes_from_the_metadata(metadata, score):
    (passage,) = passages_of([Document(WARRANTY, metadata=metadata)])
    assert passage.score == score


def test_a_chunk_keeps_its_number():
    given = [Document(WARRANTY, metadata={"source": "w.md", "chunk": 3}), Document(BATTERY, metadata={"chunk": "3"})]
    assert [passage.chunk for passage in passages_of(given)] == [3, 0]


def call(name="search"):
    return AIMessage("", tool_calls=[{"name": name, "args": {"query": "x"}, "id": "1", "type": "tool_call"}])


def ways():
    question = "How long?"
    blocks = [create_plaintext_block(text) for text in (WARRANTY, BATTERY)]
    yield "documents=", lambda llm: llm.invoke(question, documents=DOCUMENTS)
    yield "bind", lambda llm: llm.bind(documents=DOCUMENTS).invoke(question)
    yield "blocks", lambda llm: llm.invoke([HumanMessage([*blocks, {"type": "text", "text": question}])])
    yield "kwargs", lambda llm: llm.invoke([HumanMessage(question, additional_kwargs={"documents": DOCUMENTS})])
    yield "stuffed", lambda llm: llm.invoke(f"{WARRANTY}\n\n{BATTERY}\n\n{question}")
    yield "numbered", lambda llm: llm.invoke(f"[1] {BATTERY}\n[2] {WARRANTY}\n{question}")
    alone = ToolMessage(f"{WARRANTY}\n\n{BATTERY}", tool_call_id="1", artifact=DOCUMENTS)
    yield "artifact", lambda llm: llm.invoke([HumanMessage(question), call(), alone])
    listed = ToolMessage(f"1. {WARRANTY}\n2. {BATTERY}", tool_call_id="1", artifact=DOCUMENTS)
    yield "listed", lambda llm: llm.invoke([HumanMessage(question), call(), listed])


@pytest.mark.parametrize(("name", "ask"), [*ways()])
def test_each_document_is_a_hit(llm, name, ask):
    told = ask(llm).response_metadata
    assert (told["hits"], told["misses"]) == (2, 0)
    assert told["matched_tokens"] == llm.get_num_tokens(WARRANTY) + llm.get_num_tokens(BATTERY)


def test_sources_are_named(llm):
    told = llm.invoke("How long?", documents=DOCUMENTS).response_metadata
    assert [source["document"] for source in told["sources"]] == ["w.md", "b"]


def test_documents_stand_before_the_last_question():
    history = [HumanMessage("Hello"), AIMessage("Hello."), HumanMessage("How long?")]
    *_, hello, answer, asked = converted(history, DOCUMENTS)
    assert (hello.content, answer.content) == (("Hello",), ("Hello.",))
    assert asked.content == ("Documents:\n\n", *PASSAGES, "How long?")


def test_the_engines_system_prompt_stands_where_there_is_none():
    assert converted([HumanMessage("How long?")], DOCUMENTS)[0] == SYSTEM
    assert converted([SystemMessage("Own."), HumanMessage("How long?")], DOCUMENTS)[0].content == ("Own.",)
    assert converted([HumanMessage("How long?")])[0].role == "user"


def test_blocks_keep_their_order_title_and_origin():
    block = create_plaintext_block(WARRANTY, title="Warranty", context="manual, page 3")
    (message,) = converted([HumanMessage(["Read: ", block, {"type": "text", "text": "How long?"}])])
    assert message.content == ("Read: ", Passage(WARRANTY, "Warranty", "manual, page 3"), "How long?")


def test_a_block_may_hold_its_text_in_base64():
    data = base64.b64encode(WARRANTY.encode()).decode()
    block = {"type": "text-plain", "base64": data, "mime_type": "text/plain"}
    (message,) = converted([HumanMessage([block])])
    assert message.content == (Passage(WARRANTY),)


@pytest.mark.parametrize(
    ("block", "cause"),
    [
        ({"url": "https://example.org"}, "nothing is fetched"),
        ({"file_id": "x"}, "nothing is fetched"),
        ({"text": " "}, "is empty"),
        ({"base64": "!"}, "not text in base64"),
        ({"base64": base64.b64encode(b"\xff\xfe").decode()}, "not text in base64"),
    ],
)
def test_a_block_without_text_is_refused(block, cause):
    with pytest.raises(ConfigError, match=cause):
        converted([HumanMessage([{"type": "text-plain", "mime_type": "text/plain", **block}])])


def test_a_retriever_tools_documents_are_passages():
    content = f"{WARRANTY}\n\n{BATTERY}"
    *_, tool = converted([ToolMessage(content, tool_call_id="1", name="search", artifact=DOCUMENTS)])
    assert tool.content == PASSAGES
    assert tool.extra == {"tool_call_id": "1", "name": "search"}


def test_a_tools_text_that_says_more_stays_as_it_is():
    content = f"Found:\n1. {WARRANTY}\n2. {BATTERY}\nEnd."
    (tool,) = converted([ToolMessage(content, tool_call_id="1", artifact=DOCUMENTS)])
    assert tool.content == (content,)


@pytest.mark.parametrize("artifact", [None, "text", {"documents": 3}, [1, 2], [Document("is not in the text")]])
def test_an_artifact_of_another_kind_changes_nothing(artifact):
    (tool,) = converted([ToolMessage("It rains.", tool_call_id="1", artifact=artifact)])
    assert tool.content == ("It rains.",)


def test_calls_and_thoughts_of_earlier_answers():
    blocks = [{"type": "reasoning", "reasoning": "Hm."}, "Let me see.", {"type": "tool_use", "id": "1", "name": "f"}]
    given = AIMessage(blocks, tool_calls=[{"name": "f", "args": {"x": 1}, "id": "1", "type": "tool_call"}])
    (answer,) = converted([given])
    assert answer.content == ("Let me see.",)
    assert answer.extra == {
        "tool_calls": [{"type": "function", "id": "1", "function": {"name": "f", "arguments": {"x": 1}}}]
    }


def test_precomputing_passes_documents_through_and_reports(engine):
    with ChatRagBlend(engine=engine) as llm:
        precompute = PrecomputeKV(llm.library, form=lambda document: f"Source: {document.id}\n{document.page_content}")
        assert precompute.transform_documents(DOCUMENTS) is DOCUMENTS
        assert (precompute.report.texts, precompute.report.computed) == (2, 2)
        assert DOCUMENTS[0].metadata == {"source": "w.md"}
        precompute.transform_documents(DOCUMENTS)
        assert precompute.report.unchanged == 2
        told = llm.invoke(f"Source: b\n{BATTERY}\n\nHow long?").response_metadata
        assert told["hits"] == 1


def test_kv_is_kept_by_a_library():
    with pytest.raises(ConfigError, match="not by a str"):
        PrecomputeKV("handbook.rag")


def key_behind(library, text, *before):
    """The key of a text that was prefilled behind others of its document."""
    ids = library.engine.template.text_ids
    context = [token for piece in before for token in (*ids(piece), *ids("\n\n"))]
    return library.engine.chunk_key(library.store.key_namespace, ids(text), context_ids=context)


def kept(library):
    return {entry.key for entry in library.store.entries()}


PIECES = [Document(text, metadata={"source": "w.md", "part": part}) for text, part in ((WARRANTY, 1), (BATTERY, 2))]


def test_documents_of_one_source_are_pieces_of_it(engine):
    with ChatRagBlend(engine=engine) as llm:
        PrecomputeKV(llm).transform_documents(PIECES)
        assert kept(llm.library) == {key_behind(llm.library, WARRANTY), key_behind(llm.library, BATTERY, WARRANTY)}
        assert llm.invoke("How long?", documents=PIECES).response_metadata["hits"] == 2


@pytest.mark.parametrize(
    ("piece_of", "are_pieces"),
    [
        ("part", False),
        ("chapter", False),
        (None, False),
        (lambda document: None, False),
        (lambda document: document.metadata["source"].upper(), True),
    ],
)
def test_what_says_that_they_are_can_be_chosen(engine, piece_of, are_pieces):
    with ChatRagBlend(engine=engine) as llm:
        PrecomputeKV(llm, piece_of=piece_of).transform_documents(PIECES)
        before = [WARRANTY] if are_pieces else []
        assert kept(llm.library) == {key_behind(llm.library, WARRANTY), key_behind(llm.library, BATTERY, *before)}


def test_documents_without_a_source_stand_alone(engine):
    with ChatRagBlend(engine=engine) as llm:
        PrecomputeKV(llm).transform_documents([Document(WARRANTY), Document(" "), Document(BATTERY)])
        assert kept(llm.library) == {key_behind(llm.library, WARRANTY), key_behind(llm.library, BATTERY)}


def test_it_must_be_a_key_or_a_function(engine):
    with ChatRagBlend(engine=engine) as llm, pytest.raises(ConfigError, match="piece_of is a metadata key"):
        PrecomputeKV(llm, piece_of=3)
