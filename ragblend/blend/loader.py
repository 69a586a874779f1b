"""Loading: stored layers go to their positions on the canvas, just before the layer is computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ragblend.blend.plan import Placement, Plan
from ragblend.errors import EntryError, GenerationCancelled, StoreError
from ragblend.kernels import ops
from ragblend.kernels.layout import LayerKV, Rotation
from ragblend.models.adapter import DecoderAdapter
from ragblend.models.canvas import Canvas


class LostChunkError(StoreError):
    """A stored layer could not be read in the middle of a request; ``key`` names its entry."""

    def __init__(self, key: str, error: EntryError) -> None:
        super().__init__(str(error))
        self.key = key
        self.cause = error.cause


class Loader:
    """Places a plan's chunks on a canvas, one layer at a time and each layer once."""

    def __init__(
        self, adapter: DecoderAdapter, plan: Plan, canvas: Canvas, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        self._adapter = adapter
        self._plan = plan
        self._canvas = canvas
        self._cancelled = cancelled
        self._placed: set[int] = set()
        self.seconds = 0.0
        self._moved = [placement for placement in plan.placements if placement.canonical]
        self._standing = [placement for placement in plan.placements if not placement.canonical]
        span = (self._moved[0].start, self._moved[-1].stop) if self._moved else (0, 0)
        self._angles = adapter.rotary.angles(torch.arange(*span, device=adapter.device))

    def place(self, layer: int) -> None:
        """Make sure that ``layer`` is placed. Raises LostChunkError, GenerationCancelled."""
        if self._cancelled():
            raise GenerationCancelled("the request was cancelled before its first token")
        if layer in self._placed or not self._plan.placements:
            return
        began = time.perf_counter()
        cos, sin, rotation = self._adapter.rotary.turning(layer, self._angles)
        self._place(layer, self._standing, cos, sin, "none")
        self._place(layer, self._moved, cos, sin, rotation)
        self._placed.add(layer)
        self.seconds += time.perf_counter() - began

    def _place(self, layer: int, placements: Sequence[Placement], cos: Tensor, sin: Tensor, rotation: Rotation) -> None:
        """Place all of ``placements`` at once; cos and sin begin at the first of them."""
        if not placements:
            return
        keys, values = self._canvas.keys(layer)[0], self._canvas.values(layer)[0]
        chunks = [_read(placement, layer, keys) for placement in placements]
        starts = [placement.start for placement in placements]
        ops.place_chunks(chunks, starts, keys, values, cos, sin, starts[0], rotation, impl=self._adapter.kernels)


def _read(placement: Placement, layer: int, canvas: Tensor) -> LayerKV:
    """One layer of one chunk, on the canvas' device; compact as it is kept, else in the canvas' type."""
    try:
        kv = placement.reader.layer(layer)
    except EntryError as error:
        raise LostChunkError(placement.key or "", error) from error
    dtype = canvas.dtype if kv.codec == "raw" else None
    return kv.map(lambda tensor: tensor.to(canvas.device, dtype).contiguous())
