"""The whole engine on the Triton kernels equals the engine on torch."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from ragblend.blend.anchor import Anchor
from ragblend.blend.blender import blend
from ragblend.blend.gate import run_gate
from ragblend.blend.policies import policy_named
from ragblend.blend.prefill import prefill_chunks
from ragblend.config import GenerationSettings
from ragblend.engine import Engine
from ragblend.models.adapter import DecoderAdapter
from ragblend.models.steps import GraphStep, steps_on
from ragblend.prompt import Prompt, Segment
from ragblend.store.base import read_whole
from ragblend.store.codecs import StoreCodec
from ragblend.store.format import encode_chunk
from ragblend.store.memory import MemoryStore
from ragblend.store.reader import ChunkReader
from ragblend.store.source import MemorySource
from tests import tiny

ANCHOR, SUFFIX = tiny.random_ids(9, 50), tiny.random_ids(8, 99)
CHUNKS = [tiny.random_ids(20 + number, number) for number in range(3)]
KEY = "0" * 64
PROMPT = Prompt(
    (
        Segment("prefix", ANCHOR),
        *(Segment("chunk", ids, key=str(number)) for number, ids in enumerate(CHUNKS)),
        Segment("suffix", SUFFIX),
    )
)


def adapter(kernels: str, family: str = "llama") -> DecoderAdapter:
    return DecoderAdapter(tiny.family(family, num_hidden_layers=2), kernels)


@pytest.fixture(scope="module")
def both():
    """The same model twice, with the chunks' KV as each form of the kernels prefills it."""
    made = []
    for kernels in ("triton", "torch"):
        model = adapter(kernels)
        anchor = Anchor(model, ANCHOR)
        store = MemoryStore(budget_bytes=1 << 30)
        for number, kv in enumerate(prefill_chunks(model, anchor, CHUNKS)):
            store.put(str(number), kv)
        made.append((model, anchor, store))
    return made


@pytest.mark.parametrize(("policy", "ratio"), [("full", 0.0), ("none", 0.0), ("hkvd", 0.3), ("query", 0.3)])
def test_policies_and_decoding_give_the_logits_of_torch(both, policy, ratio):
    found = []
    for model, anchor, store in both:
        blended = blend(model, anchor, PROMPT, policy=policy_named(policy), ratio=ratio, store=store, room=4)
        answer = tiny.random_ids(4, seed=7)
        steps = [model.append(blended.canvas, torch.tensor([[token]]))[0, -1] for token in answer]
        found.append(torch.stack([blended.logits, *steps]))
    torch.testing.assert_close(*found, atol=1e-4, rtol=0)


def test_a_decoding_step_on_fixed_memory_gives_the_logits_of_torch(both, monkeypatch):
    """As a CUDA graph replays it: over the whole canvas, and blind to what nobody has written."""
    monkeypatch.setattr(GraphStep, "_capture", lambda self: None)
    found = []
    for (model, anchor, store), step_of in zip(both, (GraphStep, partial(steps_on, cuda_graph=False)), strict=True):
        blended = blend(model, anchor, PROMPT, policy=policy_named("none"), ratio=0.0, store=store, room=40)
        for layer in range(model.layer_count):
            blended.canvas.keys(layer)[:, :, len(PROMPT) :] = torch.nan
            blended.canvas.values(layer)[:, :, len(PROMPT) :] = torch.nan
        step = step_of(model, blended.canvas)
        found.append(torch.cat([step(torch.tensor([[token]])) for token in tiny.random_ids(4, seed=7)]))
    torch.testing.assert_close(*found, atol=1e-4, rtol=0)


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_compact_chunks_go_through_undequantised(both, codec):
    """As a library's store hands them out: views of one read, at whatever address they have."""
    found = []
    for model, anchor, raw in both:
        store = MemoryStore(budget_bytes=1 << 30)
        for number, ids in enumerate(CHUNKS):
            file = b"".join(encode_chunk(KEY, read_whole(raw.open(str(number), ids), ids), StoreCodec.named(codec)))
            store.put(str(number), read_whole(ChunkReader(MemorySource("", file), KEY), ids))
        blended = blend(model, anchor, PROMPT, policy=policy_named("none"), ratio=0.0, store=store, room=4)
        found.append(blended.logits)
    torch.testing.assert_close(*found, atol=1e-4, rtol=0)


def test_an_engine_answers_alike(own_cache):
    """Its gate passes and both choose the same tokens."""
    answers = []
    for kernels in ("triton", "torch"):
        engine = Engine.from_model(tiny.family("llama", num_hidden_layers=2), tiny.tokenizer(), kernels=kernels)
        assert engine.adapter.kernels == kernels
        prompt = Prompt((Segment("prefix", engine.template.prefix_ids), Segment("suffix", SUFFIX)))
        answers.append(engine.generate(prompt, generation=GenerationSettings(max_tokens=4)).text)
    assert answers[0] == answers[1]


# Sliding windows with sinks, soft-capped logits, interleaved and partial rotation, layers without any.
@pytest.mark.parametrize(
    "family", ["gpt-oss", "glm4", *(pytest.param(family, marks=pytest.mark.long) for family in ("gemma2", "smollm3"))]
)
def test_families_pass_the_gate(family):
    model = DecoderAdapter(tiny.family(family, num_hidden_layers=2, **OVERRIDES.get(family, {})), "triton")
    report = run_gate(model, family)
    assert report.passed, report.reason()


OVERRIDES = {
    "gpt-oss": {"layer_types": ["sliding_attention", "full_attention"]},
    "smollm3": {"no_rope_layers": [1, 0]},
}
