"""The stored layers of a request: read one at a time, checked, and put to their positions on its canvas."""

from __future__ import annotations

import threading
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


class StoredLayers:
    """What a plan's chunks have in the store, layer by layer. Reading and placing may be done by different threads.

    count: layers, 0 if nothing is stored. nbytes: of each layer that was read so far, of all chunks. read_s, place_s:
    seconds that each took.
    """

    def __init__(self, adapter: DecoderAdapter, plan: Plan, canvas: Canvas) -> None:
        self._adapter = adapter
        self._canvas = canvas
        self._standing = [placement for placement in plan.placements if not placement.canonical]
        self._moved = [placement for placement in plan.placements if placement.canonical]
        span = (self._moved[0].start, self._moved[-1].stop) if self._moved else (0, 0)
        self._angles = adapter.rotary.angles(torch.arange(*span, device=adapter.device))
        self._stopped = threading.Event()
        self.count = adapter.layer_count if plan.placements else 0
        self.nbytes: dict[int, int] = {}
        self.read_s: dict[int, float] = {}
        self.place_s: dict[int, float] = {}

    def read(self, layer: int, upload: Callable[[LayerKV], LayerKV] = lambda kv: kv) -> list[LayerKV]:
        """One layer of all chunks, compact as it is kept, and where ``upload`` puts it.

        Reading wakes no threads of torch's, so it takes one core at most. Raises LostChunkError, and
        GenerationCancelled after ``stop``.
        """
        began = time.perf_counter()
        chunks = []
        for placement in (*self._standing, *self._moved):
            if self._stopped.is_set():
                raise GenerationCancelled("the request has ended: nothing more is read for it")
            try:
                chunks.append(upload(placement.reader.layer(layer)))
            except EntryError as error:
                raise LostChunkError(placement.key or "", error) from error
        self.nbytes[layer] = sum(kv.nbytes for kv in chunks)
        self.read_s[layer] = time.perf_counter() - began
        return chunks

    @torch.inference_mode()
    def place(self, layer: int, chunks: Sequence[LayerKV]) -> None:
        """Put what ``read`` gave to its positions on the canvas, with keys turned to them."""
        began = time.perf_counter()
        cos, sin, rotation = self._adapter.rotary.turning(layer, self._angles)
        standing = len(self._standing)
        self._place(layer, self._standing, chunks[:standing], cos, sin, "none")
        self._place(layer, self._moved, chunks[standing:], cos, sin, rotation)
        self.place_s[layer] = time.perf_counter() - began

    def stop(self) -> None:
        """Let nobody read on after the chunk that is being read."""
        self._stopped.set()

    def _place(
        self,
        layer: int,
        placements: Sequence[Placement],
        chunks: Sequence[LayerKV],
        cos: Tensor,
        sin: Tensor,
        rotation: Rotation,
    ) -> None:
        """Place all of ``placements`` at once; cos and sin begin at the first of them."""
        if not placements:
            return
        keys, values = self._canvas.keys(layer)[0], self._canvas.values(layer)[0]
        starts = [placement.start for placement in placements]
        fitting = [_fitting(kv, keys.dtype) for kv in chunks]
        ops.place_chunks(fitting, starts, keys, values, cos, sin, starts[0], rotation, impl=self._adapter.kernels)


def _fitting(kv: LayerKV, dtype: torch.dtype) -> LayerKV:
    """As kernels take it: contiguous, and in the canvas' type unless it is compact."""
    wanted = dtype if kv.codec == "raw" else None
    return kv.map(lambda tensor: tensor.to(dtype=wanted).contiguous())
