"""The synthesizer keeps nodes apart: each is a chunk of its own, whatever is in it and whatever the order."""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core import VectorStoreIndex, get_response_synthesizer
from llama_index.core.base.llms.types import CitableBlock, MessageRole
from llama_index.core.llms import MockLLM
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate
from llama_index.core.schema import NodeWithScore
from setting import make_engine
from watching import Watcher

from llama_index.llms.ragblend import RagBlend
from llama_index.response_synthesizers.ragblend import RagBlendSynthesizer
from ragblend.errors import ConfigError, ContextOverflowError

QUESTION = "How long does the warranty last?"


@pytest.fixture
def scored(nodes) -> list[NodeWithScore]:
    return [NodeWithScore(node=node, score=1.0 - n / 10) for n, node in enumerate(nodes)]


def test_every_node_is_a_hit_of_its_own_once_it_was_read(llm, scored):
    synthesizer = RagBlendSynthesizer(llm)
    with Watcher() as watcher:
        first = synthesizer.synthesize(QUESTION, scored)
        assert llm.library.wait(60)
        second = synthesizer.synthesize("And the battery?", scored[::-1])
    assert first.response
    assert [raw["hits"] for raw in watcher.answers] == [0, len(scored)]
    assert [raw["misses"] for raw in watcher.answers] == [len(scored), 0]
    assert [node.node_id for node in second.source_nodes] == [node.node_id for node in scored[::-1]]
    assert first.metadata[scored[0].node_id] == scored[0].metadata


def test_the_prompt_begins_as_the_engines_own_does(scored):
    """Its beginning is reused, and without a preamble the first node's KV is exact: nothing is recomputed."""
    with RagBlend(engine=make_engine(preamble=""), max_tokens=12) as llm:
        synthesizer = RagBlendSynthesizer(llm)
        fresh = synthesizer.synthesize(QUESTION, scored[:1]).response
        assert llm.library.wait(60)
        llm.ratio = 0.5
        with Watcher() as watcher:
            assert synthesizer.synthesize(QUESTION, scored[:1]).response == fresh
        usage = watcher.answers[0]["usage"]
        assert usage["recomputed_tokens"] == 0
        assert usage["cached_tokens"] >= len(llm.engine.template.prefix_ids) + watcher.answers[0]["matched_tokens"]


def test_nodes_with_blank_lines_and_each_others_text_stay_apart(llm, scored):
    tricky = [node.model_copy(deep=True) for node in scored[:3]]
    tricky[0].node.text = "A table:\n\n| a | b |\n\n---------------------\n\n"
    tricky[1].node.text = tricky[2].node.text + "\n\n" + tricky[0].node.text
    synthesizer = RagBlendSynthesizer(llm)
    synthesizer.synthesize(QUESTION, tricky)
    assert llm.library.wait(60)
    with Watcher() as watcher:
        synthesizer.synthesize(QUESTION, tricky)
    assert (watcher.answers[0]["hits"], watcher.answers[0]["misses"]) == (3, 0)


def test_all_forms_give_the_same_answer(llm, scored):
    whole = RagBlendSynthesizer(llm).synthesize(QUESTION, scored).response
    streaming = RagBlendSynthesizer(llm, streaming=True)
    assert "".join(streaming.synthesize(QUESTION, scored).response_gen).strip() == whole

    async def later() -> list[str]:
        one = await RagBlendSynthesizer(llm).asynthesize(QUESTION, scored)
        stream = await streaming.asynthesize(QUESTION, scored)
        return [one.response, "".join([piece async for piece in stream.async_response_gen()]).strip()]

    llm.ratio = 1.0  # what was learned meanwhile makes no difference then
    assert asyncio.run(later()) == [whole, whole]


def test_in_a_query_engine_it_takes_the_place_of_the_response_mode(llm, documents, embed_model):
    index = VectorStoreIndex.from_documents(documents, embed_model=embed_model)
    engine = index.as_query_engine(response_synthesizer=RagBlendSynthesizer(llm), similarity_top_k=4, llm=llm)
    engine.query(QUESTION)
    assert llm.library.wait(60)
    with Watcher() as watcher:
        assert engine.query("Which error means a blocked wheel?").response
    assert watcher.answers[0]["hits"] >= 2
    assert "SynthesizeEndEvent" in watcher.names


def test_the_prompt_is_the_users_to_change(llm, scored):
    synthesizer = RagBlendSynthesizer(llm, text_qa_template=PromptTemplate("Text: {context_str}\nQ: {query_str}"))
    with Watcher() as watcher:
        synthesizer.synthesize("Why?", scored[:1])
        synthesizer.update_prompts(
            {
                "text_qa_template": ChatPromptTemplate.from_messages(
                    [("system", "Rhyme."), ("user", "{query_str} {context_str}")]
                )
            }
        )
        synthesizer.synthesize("Why?", scored[:1])
    first, second = (event for event in watcher.events if event.class_name() == "LLMChatStartEvent")
    assert [message.role for message in first.messages] == [MessageRole.USER]
    assert first.messages[0].content.startswith("Text: ")
    assert first.messages[0].content.endswith("\nQ: Why?")
    assert second.messages[0].content == "Rhyme."
    assert list(synthesizer.get_prompts()) == ["text_qa_template"]


def test_without_nodes_the_model_is_not_asked(llm):
    with Watcher() as watcher:
        assert RagBlendSynthesizer(llm).synthesize(QUESTION, []).response == "Empty Response"
    assert watcher.answers == []


def test_too_many_nodes_are_refused_or_dropped_lowest_score_first(llm, scored, monkeypatch):
    monkeypatch.setattr(llm.engine.adapter, "context_length", 600)
    with pytest.raises(ContextOverflowError, match="600"):
        RagBlendSynthesizer(llm).synthesize(QUESTION, scored)
    llm.overflow = "drop"
    names = [node.node_id for node in scored]
    unscored = [NodeWithScore(node=node.node, score=None) for node in scored]
    tied = [NodeWithScore(node=node.node, score=0.5) for node in scored]
    partly = [NodeWithScore(node=scored[0].node, score=float("nan")), *scored[1:]]
    for given in (scored, scored[::-1], unscored, tied, partly):
        with Watcher() as watcher:
            RagBlendSynthesizer(llm).synthesize(QUESTION, given)
        dropped = watcher.answers[0]["dropped"]
        assert 0 < len(dropped) < len(scored)
        assert dropped == names[: -len(dropped) - 1 : -1], "the lowest score goes first, wherever its node stands"


@pytest.mark.parametrize(("best_last", "order"), [(True, -1), (False, 1)])
def test_the_first_node_stands_next_to_the_question(llm, scored, best_last, order, monkeypatch):
    prompts = []
    chat = RagBlend.chat
    monkeypatch.setattr(RagBlend, "chat", lambda self, messages: prompts.append(messages) or chat(self, messages))
    RagBlendSynthesizer(llm, best_last=best_last).synthesize(QUESTION, scored)
    blocks = [block for message in prompts[0] for block in message.blocks if isinstance(block, CitableBlock)]
    assert [block.source for block in blocks] == [node.node_id for node in scored][::order]


def test_nodes_that_stand_so_already_are_left_so(llm, scored, monkeypatch):
    prompts = []
    chat = RagBlend.chat
    monkeypatch.setattr(RagBlend, "chat", lambda self, messages: prompts.append(messages) or chat(self, messages))
    RagBlendSynthesizer(llm).synthesize(QUESTION, scored)
    RagBlendSynthesizer(llm).synthesize(QUESTION, scored[::-1])
    assert prompts[0] == prompts[1]


def test_what_it_cannot_work_with_is_refused(llm, scored):
    with pytest.raises(ConfigError, match="MockLLM"):
        RagBlendSynthesizer(MockLLM())
    with pytest.raises(ConfigError, match="context_str"):
        RagBlendSynthesizer(llm, text_qa_template=PromptTemplate("{query_str}"))
    with pytest.raises(ConfigError, match="best_last must be true or false, got 'no'"):
        RagBlendSynthesizer(llm, best_last="no")
    synthesizer = RagBlendSynthesizer(llm)
    with pytest.raises(ConfigError, match="context_str"):
        synthesizer.update_prompts({"text_qa_template": PromptTemplate("{query_str}")})
    empty = scored[0].model_copy(deep=True)
    empty.node.text, empty.node.metadata = "", {}
    assert synthesizer.synthesize(QUESTION, [empty, *scored[1:]]).response


def test_llama_indexs_own_synthesizers_take_the_llm_too(llm, scored):
    assert get_response_synthesizer(llm=llm, response_mode="compact").synthesize(QUESTION, scored).response
