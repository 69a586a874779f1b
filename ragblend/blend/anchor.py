"""The fixed ids behind which every chunk is prefilled, with their KV."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import torch

from ragblend.models.adapter import DecoderAdapter
from ragblend.models.canvas import Canvas
from ragblend.store.base import ChunkKV


class Anchor:
    """token_ids: ``opening_ids``, with which prompts begin, then ``preamble_ids``, which no prompt contains. A chunk
    with a context of its own stands behind the opening and that, instead of the preamble.

    The opening's rows are computed at once. Only prefilling needs the others: they are computed when they are
    first asked for, so that a process which only answers does not wait for them. Keys stay as they were
    computed, since an anchor always stands at the same positions. Safe to share between threads.

    in_prompts: whether it is what prompts begin with, and nothing more. Then no chunk has a context of its own.
    """

    def __init__(self, adapter: DecoderAdapter, opening_ids: Sequence[int], preamble_ids: Sequence[int] = ()) -> None:
        self.opening_ids = tuple(opening_ids)
        self.token_ids = (*opening_ids, *preamble_ids)
        self.in_prompts = not preamble_ids
        self._adapter = adapter
        self._computed = ChunkKV((), ())
        self._lock = threading.Lock()
        self._compute(len(opening_ids))

    def first(self, tokens: int) -> ChunkKV:
        """KV of the first ``tokens`` rows, at positions 0..tokens-1 (no layers for no rows)."""
        with self._lock:
            if tokens > len(self._computed.token_ids):
                self._compute(len(self.token_ids))
            return self._computed.first(tokens)

    def before(self, context_ids: tuple[int, ...]) -> tuple[int, ...]:
        """What a chunk with this context is prefilled behind; without one, that is all of the anchor."""
        return (*self.opening_ids, *context_ids) if context_ids else self.token_ids

    def place(self, canvas: Canvas, tokens: int) -> None:
        """Put the first ``tokens`` rows into every batch entry of an empty canvas."""
        _place(self.first(tokens), canvas)

    def _compute(self, tokens: int) -> None:
        """Compute the rows up to ``tokens``, behind those that are there already."""
        known = self._computed
        rest = self.token_ids[len(known.token_ids) : tokens]
        if not rest:
            return
        canvas = self._adapter.canvas(tokens)
        _place(known, canvas)
        self._adapter.append(canvas, torch.tensor([rest], device=self._adapter.device))
        self._computed = canvas.take(0, self.token_ids[:tokens])


def _place(kv: ChunkKV, canvas: Canvas) -> None:
    count = len(kv.token_ids)
    for index, layer in enumerate(kv.layers):
        canvas.keys(index)[:, :, :count] = layer.keys.to(canvas.keys(index).device)
        canvas.values(index)[:, :, :count] = layer.values.to(canvas.values(index).device)
    canvas.set_length(count)
