"""Batches of chunks behind the anchor: the same KV as one by one, and bounded canvases."""

from __future__ import annotations

import torch

from ragblend.blend import prefill
from tests import tiny


def test_a_batch_gives_what_each_chunk_gives_alone(tiny_engine):
    chunks = [tiny.random_ids(length, seed=length) for length in (5, 40, 17)]
    together = list(tiny_engine.prefill(chunks))
    for chunk, kv in zip(chunks, together, strict=True):
        [alone] = tiny_engine.prefill([chunk])
        for ours, expected in zip(kv.layers, alone.layers, strict=True):
            torch.testing.assert_close(ours.keys, expected.keys, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(ours.values, expected.values, atol=1e-4, rtol=1e-4)


def test_many_short_chunks_do_not_copy_a_long_anchor_without_bound(tiny_engine, monkeypatch):
    made = []
    canvas = tiny_engine.adapter.canvas

    def watched(length, batch=1):
        made.append(length * batch)
        return canvas(length, batch=batch)

    monkeypatch.setattr(tiny_engine.adapter, "canvas", watched)
    chunks = [tiny.random_ids(8, seed) for seed in range(200)]
    assert len(list(tiny_engine.prefill(chunks))) == 200
    assert len(made) > 1
    assert max(made) <= prefill.CANVAS_TOKENS
