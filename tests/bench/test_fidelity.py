"""Distances between distributions, and continuing one canvas several ways."""

from __future__ import annotations

from math import log

import pytest
import torch

from ragblend.bench.fidelity import Continuations, leading_agreement, mean_kl, mean_nll, top1_agreement
from ragblend.blend.blender import blend
from ragblend.blend.policies import policy_named
from ragblend.config import GenerationSettings
from ragblend.engine import Engine
from ragblend.prompt import Prompt, Segment
from tests import tiny


def logits(*steps: list[float]) -> torch.Tensor:
    return torch.tensor(steps).log()


def test_kl_is_the_mean_over_steps_of_reference_to_other() -> None:
    reference, other = logits([0.5, 0.5], [0.5, 0.5]), logits([0.5, 0.5], [0.25, 0.75])
    expected = (0.5 * log(0.5 / 0.25) + 0.5 * log(0.5 / 0.75)) / 2
    assert mean_kl(reference, other) == pytest.approx(expected)
    assert mean_kl(reference, reference) == 0.0


def test_kl_needs_no_normalised_logits() -> None:
    reference, other = logits([0.2, 0.8]), logits([0.6, 0.4])
    assert mean_kl(reference + 3, other - 5) == pytest.approx(mean_kl(reference, other), abs=1e-6)


def test_agreement_and_likelihood() -> None:
    first, second = logits([0.9, 0.1], [0.2, 0.8]), logits([0.6, 0.4], [0.7, 0.3])
    assert top1_agreement(first, second) == 0.5
    assert mean_nll([0, 1], first) == pytest.approx(-(log(0.9) + log(0.8)) / 2)


def test_leading_agreement_stops_at_the_first_other_token() -> None:
    steps = logits([0.9, 0.1], [0.2, 0.8], [0.9, 0.1])
    assert leading_agreement([0, 1, 0], steps) == 3
    assert leading_agreement([0, 0, 0], steps) == 1
    assert leading_agreement([1, 1, 0], steps) == 0


@pytest.fixture
def prompt(tiny_engine: Engine) -> Prompt:
    return tiny_engine.template.build([Segment("chunk", tiny.random_ids(40))], "How long?")


@pytest.fixture
def continuations(tiny_engine: Engine, prompt: Prompt) -> Continuations:
    blended = blend(tiny_engine.adapter, tiny_engine.anchor, prompt, policy=policy_named("full"), ratio=1.0, room=24)
    return Continuations(tiny_engine.adapter, blended, prompt.token_ids)


def test_the_answer_is_the_engines(tiny_engine: Engine, prompt: Prompt, continuations: Continuations) -> None:
    answer = tiny_engine.generate(prompt, generation=GenerationSettings(max_tokens=12))
    assert continuations.greedy(12) == answer.token_ids
    assert continuations.greedy(12) == answer.token_ids  # the canvas is as it was


def test_step_logits_are_those_of_one_pass_over_everything(
    tiny_engine: Engine, prompt: Prompt, continuations: Continuations
) -> None:
    ids = tiny.random_ids(5, seed=1)
    whole = Prompt((*prompt.segments[:-1], Segment("suffix", (*prompt.segments[-1].token_ids, *ids[:-1]))))
    canvas = tiny_engine.adapter.canvas(len(whole))
    expected = tiny_engine.adapter.append(canvas, torch.tensor([whole.token_ids]), logits=5)[0]
    torch.testing.assert_close(continuations.step_logits(ids), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(continuations.step_logits(ids[:1]), expected[:1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("agreed", [0, 1, 5, 12])
def test_a_draft_changes_how_the_answer_is_found_but_not_the_answer(continuations: Continuations, agreed: int) -> None:
    answer = continuations.greedy(12)
    draft = (*answer[:agreed], *((token + 1) % 256 for token in answer[agreed:]))
    assert continuations.greedy_along(draft, continuations.step_logits(draft), 12) == answer
