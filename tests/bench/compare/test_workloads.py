"""The prompts of each workload: what they share, and what they do not."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ragblend.bench.compare.workloads import WORKLOADS, Material, Workload
from ragblend.errors import ConfigError
from ragblend.prompt import PromptTemplate
from tests import tiny

CONTEXT = 200


@pytest.fixture(scope="module")
def material() -> Material:
    texts = [f"Sentence {number} of text {text}. It says {number * text}." for text in range(3) for number in range(9)]
    questions = [(f"What is {number}?", f"It is {number}.") for number in range(3)]
    return Material(PromptTemplate(tiny.tokenizer()), texts, questions, CONTEXT, chunk_tokens=40)


def made(name: str, material: Material, count: int = 4) -> Workload:
    return WORKLOADS[name](material, count)


def common(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """Length of the beginning that both share."""
    pairs = zip(first, second, strict=False)
    return next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


@pytest.mark.parametrize("name", WORKLOADS)
def test_prompts_have_the_context_asked_for_and_repeat(name: str, material: Material) -> None:
    workload = made(name, material)
    assert len(workload.prompts) == 4
    assert all(len(prompt) > CONTEXT for prompt in workload.prompts)
    assert made(name, material) == workload


def test_reordered_prompts_have_the_same_chunks_in_other_orders(material: Material) -> None:
    workload = made("reordered", material)
    orders = [tuple(chunk.token_ids for chunk in prompt.chunks) for prompt in workload.prompts]
    assert all(sorted(order) == sorted(workload.chunks) for order in orders)
    assert len(set(orders)) == len(orders)


def test_a_conversations_prompt_begins_with_the_one_before(material: Material) -> None:
    workload = made("conversation", material)
    for before, after in pairwise(workload.prompts):
        assert after.token_ids[: len(before)] == before.token_ids
        assert [chunk.token_ids for chunk in after.chunks] == list(workload.chunks)


def test_a_system_prompt_is_shared_whole_and_is_no_document(material: Material) -> None:
    workload = made("system", material)
    assert workload.chunks == ()
    assert not any(prompt.chunks for prompt in workload.prompts)
    shared = [common(first.token_ids, second.token_ids) for first, second in pairwise(workload.prompts)]
    assert all(CONTEXT <= tokens < len(workload.prompts[0]) for tokens in shared)


def test_fresh_prompts_share_no_document(material: Material) -> None:
    workload = made("fresh", material)
    assert workload.chunks == ()
    chunks = [chunk.token_ids for prompt in workload.prompts for chunk in prompt.chunks]
    assert len(set(chunks)) == len(chunks) == 4 * CONTEXT // 40


def test_workloads_begin_each_in_their_own_way(material: Material) -> None:
    """So that none profits from what another one left in a cache."""
    beginnings = [made(name, material).prompts[0].token_ids for name in WORKLOADS]
    shared = [common(first, second) for at, first in enumerate(beginnings) for second in beginnings[at + 1 :]]
    assert max(shared) < len(material.template.prefix_ids) + 16


def test_too_little_text(material: Material) -> None:
    with pytest.raises(ConfigError, match="needs that much text"):
        WORKLOADS["fresh"](Material(material.template, ["Short."], material.questions, CONTEXT, 40), 2)
