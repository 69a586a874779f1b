"""Loading: stored layers go to their positions on the canvas, just before the layer is computed."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from ragblend.blend.plan import Plan
from ragblend.errors import EntryError, GenerationCancelled, StoreError
from ragblend.models.adapter import DecoderAdapter
from ragblend.models.canvas import Canvas


class LostChunkError(StoreError):
    """A stored layer could not be read in the middle of a request; ``key`` names its entry."""

    def __init__(self, key: str, error: EntryError) -> None:
        super().__init__(str(error))
        self.key = key
        self.cause = error.cause


class Loader:
    """Places a plan's chunks on a canvas, one layer at a time and each layer once.

    One rotation moves all chunks of a layer: keys are copied first, then turned in place from the
    first position of canonical keys to the last. Rows in between are computed anyway before they are
    read: what is placed as it stands comes before all chunks.
    """

    def __init__(
        self, adapter: DecoderAdapter, plan: Plan, canvas: Canvas, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        self._adapter = adapter
        self._plan = plan
        self._canvas = canvas
        self._cancelled = cancelled
        self._placed: set[int] = set()
        self.seconds = 0.0
        moved = [placement for placement in plan.placements if placement.canonical]
        self._span = (moved[0].start, moved[-1].stop) if moved else (0, 0)
        self._angles = adapter.rotary.angles(torch.arange(*self._span, device=adapter.device))

    def place(self, layer: int) -> None:
        """Make sure that ``layer`` is placed. Raises LostChunkError, GenerationCancelled."""
        if self._cancelled():
            raise GenerationCancelled("the request was cancelled before its first token")
        if layer in self._placed or not self._plan.placements:
            return
        began = time.perf_counter()
        keys, values = self._canvas.keys(layer)[0], self._canvas.values(layer)[0]
        for placement in self._plan.placements:
            try:
                kv = placement.reader.layer(layer)
            except EntryError as error:
                raise LostChunkError(placement.key or "", error) from error
            keys[:, placement.start : placement.stop] = kv.keys
            values[:, placement.start : placement.stop] = kv.values
        if self._span[1]:
            self._adapter.rotary.rotate_(layer, keys[:, slice(*self._span)], self._angles)
        self._placed.add(layer)
        self.seconds += time.perf_counter() - began
