"""What a few recomputed tokens tell of the others is given to these, on a tiny model with four chunks.

Layer 0's keys and values do not depend on what stands before a token. So whatever is done to the stored ones there, to
all tokens of a chunk alike, recomputing some of them must show, and the others must get it back.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from ragblend import Engine
from ragblend.blend.blender import Blended, blend
from ragblend.blend.policies.drift import DriftCorrected
from ragblend.prompt import Prompt, Segment
from ragblend.store.memory import MemoryStore
from tests import tiny

CHUNK = 60
CHUNKS = [tiny.random_ids(CHUNK, seed) for seed in range(4)]
GLUE = tiny.random_ids(3, seed=50)
SUFFIX = tiny.random_ids(11, seed=99)
RATIO = 0.5


def stored(engine, change) -> MemoryStore:
    """The chunks' KV, after ``change(number, keys, values)`` in layer 0."""
    store = MemoryStore(budget_bytes=1 << 30)
    for number, kv in enumerate(engine.prefill(CHUNKS)):
        change(number, kv.layers[0].keys, kv.layers[0].values)
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


def distances(found: Blended, right: Blended) -> tuple[float, float]:
    keys = (found.canvas.keys(0) - right.canvas.keys(0)).abs().max()
    return float(keys), float((found.canvas.values(0) - right.canvas.values(0)).abs().max())


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


def test_nothing_but_candidates_is_shifted(tiny_engine, right):
    def change(number, keys, values):
        if number > 0:
            values += 7.0

    found = blended(tiny_engine, stored(tiny_engine, change))
    glue = len(tiny_engine.anchor_ids) + 2 * CHUNK
    exact = slice(0, len(tiny_engine.anchor_ids) + CHUNK)
    for rows in (exact, slice(glue, glue + len(GLUE)), slice(-len(SUFFIX), None)):
        assert torch.equal(found.canvas.values(0)[:, :, rows], right.canvas.values(0)[:, :, rows])


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
