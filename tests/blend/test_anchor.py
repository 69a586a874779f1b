"""The anchor: its rows are those of one prefill, and the preamble's are computed only for who needs them."""

from __future__ import annotations

import torch

from ragblend.blend.anchor import Anchor
from tests import tiny

OPENING = tiny.random_ids(9, seed=1)
PREAMBLE = tiny.random_ids(21, seed=2)


def test_its_rows_are_those_of_one_prefill(tiny_engine):
    adapter = tiny_engine.adapter
    canvas = adapter.canvas(30)
    adapter.append(canvas, torch.tensor([[*OPENING, *PREAMBLE]]))
    expected = canvas.take(0, (*OPENING, *PREAMBLE))
    anchor = Anchor(adapter, OPENING, PREAMBLE)
    assert anchor.token_ids == expected.token_ids
    for tokens in (30, 9, 4, 12):
        rows = anchor.first(tokens)
        assert rows.token_ids == expected.token_ids[:tokens]
        for ours, whole in zip(rows.layers, expected.layers, strict=True):
            torch.testing.assert_close(ours.keys, whole.keys[:, :tokens], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(ours.values, whole.values[:, :tokens], atol=1e-4, rtol=1e-4)


def test_the_preamble_is_computed_once_and_only_when_it_is_needed(tiny_engine, monkeypatch):
    computed = []
    append = tiny_engine.adapter.append

    def watched(canvas, token_ids, **options):
        computed.append(token_ids.shape[1])
        return append(canvas, token_ids, **options)

    monkeypatch.setattr(tiny_engine.adapter, "append", watched)
    anchor = Anchor(tiny_engine.adapter, OPENING, PREAMBLE)
    anchor.first(9)
    assert computed == [9]
    for tokens in (10, 30, 9):
        anchor.first(tokens)
    assert computed == [9, 21]


def test_an_empty_anchor_has_no_rows(tiny_engine):
    anchor = Anchor(tiny_engine.adapter, ())
    assert anchor.token_ids == ()
    assert anchor.first(0).layers == ()
    canvas = tiny_engine.adapter.canvas(4)
    anchor.place(canvas, len(anchor.token_ids))
    assert canvas.get_seq_length() == 0
