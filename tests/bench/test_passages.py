"""Passages as chunks, and the right answer as tokens."""

from __future__ import annotations

import pytest

from ragblend.bench.data import Example, Passage
from ragblend.bench.passages import PassagePrompts
from ragblend.engine import Engine
from tests import tiny

EXAMPLE = Example("q", "How long?", ("two years",), (Passage("Nest", "y" * 50), Passage("", "z" * 10)))


def test_a_passage_is_a_chunk_as_the_library_makes_it(tiny_engine: Engine) -> None:
    question = PassagePrompts(tiny_engine, "{question}", 512, 8).question(EXAMPLE)
    assert [chunk.token_ids for chunk in question.prompt.chunks] == [
        tiny_engine.template.chunk_ids("Nest", "", "y" * 50),
        tiny_engine.template.chunk_ids("", "", "z" * 10),
    ]
    assert question.prompt.segments[0].token_ids == tiny_engine.template.prefix_ids


def test_a_long_passage_is_cut_into_parts_of_about_equal_length(tiny_engine: Engine) -> None:
    chunks = PassagePrompts(tiny_engine, "{question}", 40, 8).question(EXAMPLE).prompt.chunks
    whole = tiny_engine.template.chunk_ids("Nest", "", "y" * 50)
    assert [len(chunk) for chunk in chunks] == [30, 29, 12]
    assert chunks[0].token_ids + chunks[1].token_ids == whole


def test_every_chunk_is_prefilled(tiny_engine: Engine) -> None:
    prompts = PassagePrompts(tiny_engine, "{question}", 40, 8)
    question = prompts.question(EXAMPLE)
    store = prompts.prefilled(question)
    for chunk in question.prompt.chunks:
        reader = store.open(chunk.key, chunk.token_ids)
        assert (reader.tokens, reader.layer_count) == (len(chunk), tiny_engine.adapter.layer_count)


@pytest.mark.parametrize(("chat_template", "answer"), [(tiny.CHAT_TEMPLATE, "two years"), (None, " two years")])
def test_the_right_answer_follows_the_prompt(chat_template: str | None, answer: str) -> None:
    tokenizer = tiny.tokenizer(chat_template)
    engine = Engine.from_model(tiny.family("llama"), tokenizer)
    question = PassagePrompts(engine, "{question}", 512, 4).question(EXAMPLE)
    assert tokenizer.decode(question.gold_ids) == answer
    assert question.room == len(answer)
