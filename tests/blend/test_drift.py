"""What a few recomputed tokens tell of the others is given to these, on a tiny model with four chunks.

Layer 0's keys and values do not depend on what stands before a token. So whatever is done to the stored ones there, to
all tokens of a chunk alike, recomputing some of them must show, and the others must get it back.
"""

from __future__ import annotations

import dataclasses
import itertools
from contextlib import closing

import pytest
import torch

from ragblend import Engine
from ragblend.blend.blender import Blended, blend
from ragblend.blend.loader import Loader
from ragblend.blend.plan import make_plan
from ragblend.blend.policies import Request
from ragblend.blend.policies.drift import DriftCorrected
from ragblend.prompt import Prompt, Segment
from ragblend.store.memory import MemoryStore
from tests import tiny

CHUNK = 60
CHUNKS = [tiny.random_ids(CHUNK, seed) for seed in range(4)]
GLUE = tiny.random_ids(3, seed=50)
SUFFIX = tiny.random_ids(11, seed=99)
RATIO = 0.5


def stored(engine, change, layer: int = 0) -> MemoryStore:
    """The chunks' KV, after ``change(number, keys, values)`` in a layer."""
    store = MemoryStore(budget_bytes=1 << 30)
    for number, kv in enumerate(engine.prefill(CHUNKS)):
        change(number, kv.layers[layer].keys, kv.layers[layer].values)
        store.put(str(number), kv)
    return store


def blended(engine, store: MemoryStore, sampled: float = 0.5) -> Blended:
    chunks = [Segment("chunk", ids, key=str(number)) for number, ids in enumerate(CHUNKS)]
    segments = (Segment("prefix", engine.anchor_ids), *chunks[:2], Segment("glue", GLUE), *chunks[2:])
    prompt = Prompt((*segments, Segment("suffix", SUFFIX)))
    return blend(
        engine.adapter, engine.anchor, prompt, policy=DriftCorrected(sampled=sampled), ratio=RATIO, store=store
    )


@pytest.fixture(scope="module")
def right(tiny_engine) -> Blended:
    """With layer 0 as it was computed."""
    return blended(tiny_engine, stored(tiny_engine, lambda *_: None))


def distances(found: Blended, right: Blended, layer: int = 0) -> tuple[float, float]:
    """Largest difference of keys and of values."""
    keys = (found.canvas.keys(layer) - right.canvas.keys(layer)).abs().max()
    return float(keys), float((found.canvas.values(layer) - right.canvas.values(layer)).abs().max())


@pytest.mark.parametrize("family", [name for name in tiny.FAMILIES if name != "falcon"])
def test_a_shift_that_all_chunks_share_is_taken_back(family):
    """However the family rotates its keys."""

    def change(number, keys, values):
        if number > 0:  # the first one is exact here
            keys += torch.linspace(-1, 1, keys.shape[-1])
            values -= 0.5

    engine = Engine.from_model(tiny.family(family), tiny.tokenizer(), name=family)
    right, shifted = blended(engine, stored(engine, lambda *_: None)), stored(engine, change)
    assert min(distances(blended(engine, shifted, sampled=0.0), right)) >= 0.5
    assert max(distances(blended(engine, shifted), right)) < 1e-4


def test_a_shift_of_each_chunk_s_own_is_mostly_taken_back(tiny_engine, right):
    def change(number, keys, values):
        keys += number
        values -= number

    keys, values = distances(blended(tiny_engine, stored(tiny_engine, change), sampled=0.0), right)
    assert values == pytest.approx(3)
    left = distances(blended(tiny_engine, stored(tiny_engine, change)), right)
    assert left[0] < keys / 4
    assert left[1] < values / 4


def test_what_differs_from_token_to_token_moves_nothing(tiny_engine, right):
    noise = torch.Generator().manual_seed(0)

    def change(number, keys, values):
        keys += torch.randn(keys.shape, generator=noise)
        values += torch.randn(values.shape, generator=noise)

    noisy = stored(tiny_engine, change)
    found = blended(tiny_engine, noisy)
    plain = blended(tiny_engine, noisy, sampled=0.0)
    recomputed = {*found.rows.tolist(), *plain.rows.tolist()}
    left = [row for row in range(len(right.canvas.keys(0)[0, 0])) if row not in recomputed]
    assert len(left) > CHUNK
    assert torch.equal(found.canvas.keys(0)[:, :, left], plain.canvas.keys(0)[:, :, left])
    assert torch.equal(found.canvas.values(0)[:, :, left], plain.canvas.values(0)[:, :, left])


@pytest.mark.parametrize("family", ["llama", "gemma3", "smollm3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layer", [1, 3])
def test_upper_layers_are_corrected_by_their_own_drift(family, layer, dtype):
    """gemma3 has sliding windows and two rotations, smollm3 layers without one. Nothing drifts by 50 of itself."""

    def change(number, keys, values):
        if number > 0:
            keys += 50.0
            values -= 50.0

    engine = Engine.from_model(tiny.family(family).to(dtype), tiny.tokenizer(), name=family)
    right = blended(engine, stored(engine, lambda *_: None), sampled=1.0)
    shifted = stored(engine, change, layer)
    keys, values = distances(blended(engine, shifted, sampled=1.0), right, layer)
    assert max(keys, values) < 12
    assert distances(blended(engine, shifted, sampled=0.0), right, layer)[1] > 45


def test_a_chunk_without_candidates_keeps_its_kv(tiny_engine):
    """One that stands between others, as what an earlier turn has settled may."""
    store = stored(tiny_engine, lambda number, keys, values: values.add_(7.0) if number else None)
    chunks = [Segment("chunk", ids, key=str(number)) for number, ids in enumerate(CHUNKS)]
    prompt = Prompt((Segment("prefix", tiny_engine.anchor_ids), *chunks, Segment("suffix", SUFFIX)))
    adapter = tiny_engine.adapter
    with closing(make_plan(prompt, tiny_engine.anchor, store, "all", adapter.device)) as whole:
        start = prompt.starts[3]
        settled = torch.arange(start, start + CHUNK)
        plan = dataclasses.replace(whole, candidates=whole.candidates[~torch.isin(whole.candidates, settled)])
        canvas = adapter.canvas(len(plan))
        with Loader(adapter, plan, canvas) as loader:
            run = DriftCorrected(sampled=1.0).select(Request(adapter, plan, canvas, loader, RATIO))
            adapter.forward_rows(canvas, plan.token_ids, run)
    for layer, kv in enumerate(adapter.canonical_rows(canvas, start, start + CHUNK)):
        torch.testing.assert_close(kv.values[0], store.open("2", CHUNKS[2]).layer(layer).values)


def test_few_samples_leave_it_to_query(tiny_engine):
    """Seven would tell too little, and cost as many of the tokens that the question attends to."""
    store = stored(tiny_engine, lambda number, keys, values: values.add_(7.0) if number else None)
    few, plain, enough = (blended(tiny_engine, store, sampled) for sampled in (7 / 90, 0.0, 8 / 90))
    assert torch.equal(few.logits, plain.logits)
    assert not torch.equal(enough.logits, plain.logits)


def test_where_nothing_changed_nothing_moves(right, tiny_engine):
    plain = blended(tiny_engine, stored(tiny_engine, lambda *_: None), sampled=0.0)
    torch.testing.assert_close(right.canvas.keys(0), plain.canvas.keys(0))
    torch.testing.assert_close(right.canvas.values(0), plain.canvas.values(0))


def test_a_share_of_the_budget_goes_to_tokens_at_even_distances(tiny_engine):
    store = stored(tiny_engine, lambda *_: None)
    by_score = set(blended(tiny_engine, store, sampled=0.0).rows.tolist())
    found = set(blended(tiny_engine, store, sampled=0.2).rows.tolist())
    assert len(found) == len(by_score)
    sampled = sorted(found - by_score)  # without those that the scores would have chosen as well
    assert len(sampled) <= round(0.2 * RATIO * 3 * CHUNK) < len(sampled) + 4
    gaps = [later - earlier for earlier, later in itertools.pairwise(sampled)]
    assert max(gaps) <= CHUNK
