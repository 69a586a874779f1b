"""Batches of chunks behind the anchor: the same KV as one by one, and bounded canvases."""

from __future__ import annotations

import pytest
import torch

from ragblend.blend import prefill
from ragblend.errors import ConfigError
from tests import tiny


def shapes_computed(engine, monkeypatch):
    """A list that gets [batch, tokens] of each pass from now on."""
    shapes = []
    append = engine.adapter.append

    def watched(canvas, token_ids, **options):
        shapes.append(tuple(token_ids.shape))
        return append(canvas, token_ids, **options)

    monkeypatch.setattr(engine.adapter, "append", watched)
    return shapes


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


def test_behind_a_context_a_chunk_is_what_a_full_prefill_of_both_makes_of_it(tiny_engine):
    adapter, context, chunk = tiny_engine.adapter, tiny.random_ids(20, seed=1), tiny.random_ids(9, seed=2)
    [kv] = tiny_engine.prefill([chunk], contexts=[context])
    before = (*tiny_engine.template.prefix_ids, *context)
    canvas = adapter.canvas(len(before) + len(chunk))
    adapter.append(canvas, torch.tensor([before + chunk]))
    expected = adapter.canonical_rows(canvas, len(before), len(before) + len(chunk))
    for ours, layer in zip(kv.layers, expected, strict=True):
        torch.testing.assert_close(ours.keys, layer.keys[0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours.values, layer.values[0], atol=1e-4, rtol=1e-4)


def test_chunks_in_their_documents_order_are_computed_once(tiny_engine, monkeypatch):
    first, second, third = (tiny.random_ids(length, seed=length) for length in (12, 7, 30))
    chunks, contexts = [first, second, third], [(), first, first + second]
    alone = [
        kv for pair in zip(chunks, contexts, strict=True) for kv in tiny_engine.prefill(pair[:1], contexts=pair[1:])
    ]
    computed = shapes_computed(tiny_engine, monkeypatch)
    together = list(tiny_engine.prefill(chunks, contexts=contexts))
    # The first stands behind the preamble. Behind the opening it is the context of the two others, which are one run.
    assert computed == [(1, len(first)), (1, len(first + second + third))]
    assert [kv.token_ids for kv in together] == chunks
    for ours, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(ours.layers[-1].values, expected.layers[-1].values, atol=1e-4, rtol=1e-4)


def test_a_chunk_must_fit_behind_its_context(tiny_engine):
    room = tiny_engine.context_length - len(tiny_engine.template.prefix_ids)
    context, chunk = tiny.random_ids(room - 3, seed=1), tiny.random_ids(4, seed=2)
    with pytest.raises(ConfigError, match="does not fit"):
        list(tiny_engine.prefill([chunk], contexts=[context]))


def test_a_context_may_go_on_behind_the_chunk_before(tiny_engine, monkeypatch):
    """With a blank line, or with a chunk that is known already."""
    first, between, second = (tiny.random_ids(length, seed=length) for length in (12, 3, 30))
    contexts = [first, (*first, *second, *between)]
    alone = [kv for context in contexts for kv in tiny_engine.prefill([second], contexts=[context])]
    computed = shapes_computed(tiny_engine, monkeypatch)
    together = list(tiny_engine.prefill([second, second], contexts=contexts))
    assert computed == [(1, 12 + 30 + 3 + 30)]
    for ours, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(ours.layers[-1].keys, expected.layers[-1].keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours.layers[-1].values, expected.layers[-1].values, atol=1e-4, rtol=1e-4)
