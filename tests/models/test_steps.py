"""Decoding steps: one that is appended, and one on fixed memory, which is what a CUDA graph replays.

No GPU is needed: the step is computed here as it would be captured, and capturing fails as it does without one.
"""

from __future__ import annotations

import logging

import pytest
import torch

from ragblend.config import GenerationSettings
from ragblend.models.adapter import DecoderAdapter
from ragblend.models.canvas import Canvas
from ragblend.models.rows import RowRun
from ragblend.models.steps import GraphStep, steps_on
from tests import tiny

PROMPT = torch.tensor(tiny.random_ids(40))
ANSWER = tiny.random_ids(5, seed=7)


def prefilled(adapter: DecoderAdapter) -> Canvas:
    """The prompt with room for the answer and more; nothing that nobody has written is a number."""
    canvas = adapter.canvas(len(PROMPT) + len(ANSWER) + 20)
    for layer in range(adapter.layer_count):
        canvas.keys(layer).fill_(torch.nan)
        canvas.values(layer).fill_(torch.nan)
    adapter.forward_rows(canvas, PROMPT, RowRun(torch.arange(len(PROMPT)), end=len(PROMPT)))
    return canvas


def decoded(step) -> torch.Tensor:
    return torch.cat([step(torch.tensor([[token]])) for token in ANSWER])


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "smollm3", "gpt-oss", "mixtral", "llama-yarn"])
def test_a_step_on_fixed_memory_gives_the_logits_of_an_appended_one(family, monkeypatch):
    monkeypatch.setattr(GraphStep, "_capture", lambda self: None)  # each step is computed as the first one is
    adapter = DecoderAdapter(tiny.family(family))
    appended, fixed = prefilled(adapter), prefilled(adapter)
    expected = decoded(steps_on(adapter, appended, cuda_graph=False))
    torch.testing.assert_close(decoded(GraphStep(adapter, fixed)), expected, atol=1e-4, rtol=0)
    assert fixed.get_seq_length() == appended.get_seq_length() == len(PROMPT) + len(ANSWER)
    for layer in range(adapter.layer_count):
        torch.testing.assert_close(fixed.keys(layer), appended.keys(layer), atol=1e-4, rtol=0, equal_nan=True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the step is captured")
def test_what_cannot_be_captured_is_decoded_as_usual(caplog):
    adapter = DecoderAdapter(tiny.family("llama"))
    expected = decoded(steps_on(adapter, prefilled(adapter), cuda_graph=False))
    with caplog.at_level(logging.WARNING):
        found = decoded(GraphStep(adapter, prefilled(adapter)))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    assert [record.message.partition(" (")[0] for record in caplog.records] == [
        "a decoding step cannot be captured as a CUDA graph"
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="capturing needs a GPU")
def test_a_captured_step_gives_the_logits_of_an_appended_one():
    adapter = DecoderAdapter(tiny.family("llama").cuda())
    canvases = [adapter.canvas(len(PROMPT) + len(ANSWER)) for _ in range(2)]
    for canvas in canvases:
        adapter.forward_rows(canvas, PROMPT.cuda(), RowRun(torch.arange(len(PROMPT)).cuda(), end=len(PROMPT)))
    usual, captured = (steps_on(adapter, canvas, graph) for canvas, graph in zip(canvases, (False, True), strict=True))
    assert isinstance(captured, GraphStep)
    for token in ANSWER:
        given = torch.tensor([[token]]).cuda()
        torch.testing.assert_close(captured(given), usual(given), atol=1e-3, rtol=0)


def test_on_a_cpu_the_setting_changes_nothing(tiny_engine):
    prompt = tiny_engine.template.build([], "Why?")
    settings = [GenerationSettings(max_tokens=6, temperature=0.8, seed=3, cuda_graph=graph) for graph in (False, True)]
    answers = [tiny_engine.generate(prompt, generation=one, prefixes="off").token_ids for one in settings]
    assert answers[0] == answers[1]
    assert not isinstance(steps_on(tiny_engine.adapter, tiny_engine.adapter.canvas(1), cuda_graph=True), GraphStep)
