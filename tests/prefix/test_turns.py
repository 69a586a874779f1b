"""Conversations over reused chunks: approximate KV goes on to the next turn, and never passes for exact."""

from __future__ import annotations

import pytest

from ragblend.config import BlendSettings, GenerationSettings, PrefixSettings
from ragblend.engine import Engine
from ragblend.prompt import Prompt, Segment
from ragblend.store.memory import MemoryStore
from tests import tiny

CHUNKS = [tiny.random_ids(40, seed) for seed in range(4)]
BLEND = BlendSettings(policy="query", ratio=0.3)
SHORT = GenerationSettings(max_tokens=5)


class Talk:
    """A conversation over chunks: each turn is the last prompt, its answer, and what comes next."""

    def __init__(self, **settings) -> None:
        prefix = PrefixSettings(**settings)
        self.engine = Engine.from_model(tiny.family("llama"), tiny.tokenizer(), prefix=prefix)
        self.store = MemoryStore(1 << 30)
        for number, kv in enumerate(self.engine.prefill(CHUNKS)):
            self.store.put(str(number), kv)
        self.segments: tuple[Segment, ...] = (
            Segment("prefix", self.engine.template.prefix_ids),
            self.chunk(0),
            self.chunk(1),
        )

    @staticmethod
    def chunk(number: int) -> Segment:
        return Segment("chunk", CHUNKS[number], str(number))

    def say(self, seed: int, *chunks: int, blend: BlendSettings = BLEND):
        """Another turn: chunks, then a question."""
        more = (*map(self.chunk, chunks), Segment("glue", tiny.random_ids(24, 50 + seed)))
        self.segments = (*self.segments, *more)
        prompt = Prompt((*self.segments[:-1], Segment("suffix", self.segments[-1].token_ids)))
        answer = self.engine.generate(prompt, store=self.store, blend=blend, generation=SHORT)
        self.segments = (*self.segments, Segment("glue", answer.token_ids))
        self.prompt = prompt
        return answer


def test_a_turn_goes_on_from_all_of_the_one_before():
    talk = Talk()
    first = talk.say(1)
    rows = len(talk.prompt) + 4
    assert first.usage.recomputed_tokens == 24
    second = talk.say(2)
    assert second.prefix_tokens == rows // 16 * 16
    assert second.usage.recomputed_tokens == 0
    assert second.usage.computed_tokens == len(talk.prompt) - second.prefix_tokens
    third = talk.say(3)
    assert third.prefix_tokens > second.prefix_tokens


def test_new_chunks_in_a_later_turn_are_blended_onto_it():
    talk = Talk()
    talk.say(1)
    second = talk.say(2, 2, 3)
    assert second.prefix_tokens > 80
    assert second.usage.recomputed_tokens == 24
    third = talk.say(3)
    assert third.usage.recomputed_tokens == 0
    assert third.prefix_tokens > second.prefix_tokens + 80


@pytest.mark.parametrize("exact", [BlendSettings(policy="prefix"), BlendSettings(policy="query", ratio=1.0)])
def test_who_wants_exact_kv_gets_none_that_is_approximate(exact):
    talk = Talk()
    talk.say(1)
    answer = talk.say(2, blend=exact)
    assert answer.prefix_tokens <= len(talk.engine.template.prefix_ids)
    full = talk.engine.generate(talk.prompt, blend=BlendSettings(policy="full"), generation=SHORT)
    assert answer.token_ids == full.token_ids


def test_exact_kv_of_the_same_prompt_serves_everyone():
    talk = Talk()
    first = talk.say(1, blend=BlendSettings(policy="prefix"))
    second = talk.say(2)
    assert second.prefix_tokens > len(talk.prompt) - 24 - 5 - 32
    full = talk.engine.generate(talk.prompt, blend=BlendSettings(policy="full"), generation=SHORT)
    assert second.token_ids == full.token_ids
    assert first.usage.recomputed_tokens == 0


@pytest.mark.parametrize("other", [BlendSettings(policy="query", ratio=0.2), BlendSettings(policy="hkvd", ratio=0.3)])
def test_another_policy_or_ratio_blends_anew(other):
    talk = Talk()
    talk.say(1)
    assert talk.say(2, blend=other).usage.recomputed_tokens > 0


def test_another_question_about_the_same_chunks_blends_anew():
    talk = Talk()
    talk.say(1)
    other = Talk.__new__(Talk)
    other.__dict__ = dict(talk.__dict__)
    other.segments = talk.segments[:3]
    assert other.say(9).usage.recomputed_tokens == 24


def test_the_same_prompt_once_more_blends_anew():
    talk = Talk()
    talk.say(1)
    again = talk.engine.generate(talk.prompt, store=talk.store, blend=BLEND, generation=SHORT)
    assert again.usage.recomputed_tokens == 24


def test_forbidden_every_turn_is_blended_anew():
    talk = Talk(approximate="forbid")
    talk.say(1)
    assert talk.say(2).usage.recomputed_tokens == 24


def test_refined_a_share_is_recomputed_for_each_question():
    talk = Talk(approximate="refine")
    talk.say(1)
    second = talk.say(2)
    assert second.prefix_tokens > 80
    assert second.usage.recomputed_tokens == round(
        0.3 * (second.prefix_tokens - len(talk.engine.template.prefix_ids) // 16 * 16)
    )
    third = talk.say(3)
    assert third.prefix_tokens > second.prefix_tokens


def test_after_the_most_turns_it_is_blended_anew():
    talk = Talk(max_turns=2)
    recomputed = [talk.say(turn).usage.recomputed_tokens for turn in range(6)]
    assert [count > 0 for count in recomputed] == [True, False, True, False, True, False]


def test_a_branch_of_a_conversation_goes_on_from_where_it_left():
    talk = Talk()
    talk.say(1)
    fork = talk.segments
    second = talk.say(2)
    talk.segments = fork
    other = talk.say(3)
    assert other.prefix_tokens == second.prefix_tokens
