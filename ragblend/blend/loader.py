"""Loading: stored layers go to their positions on the canvas, on a thread beside the one that computes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import torch
from torch import Tensor

from ragblend.blend.lane import Lane, lane_beside
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
    """Places a plan's chunks on a canvas, layer after layer and each layer once, ahead of what is computed.

    It starts at once. A layer is read, checked and placed by one task; the canvas has room for all layers, so
    loading runs as far ahead as it gets, and only the bytes of the layers that are being read lie anywhere else.
    Close it before the plan and the canvas are let go: no thread touches them afterwards.

    waited: seconds that ``place`` waited. seconds: from the start until the last layer placed so far.
    """

    def __init__(
        self, adapter: DecoderAdapter, plan: Plan, canvas: Canvas, cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        self._adapter = adapter
        self._canvas = canvas
        self._cancelled = cancelled
        self._moved = [placement for placement in plan.placements if placement.canonical]
        self._standing = [placement for placement in plan.placements if not placement.canonical]
        span = (self._moved[0].start, self._moved[-1].stop) if self._moved else (0, 0)
        self._angles = adapter.rotary.angles(torch.arange(*span, device=adapter.device))
        self._lane: Lane = lane_beside(adapter.device)
        self._closed = threading.Event()
        self._began = time.perf_counter()
        self._layer_s: dict[int, float] = {}
        self.layer_count = adapter.layer_count
        self.waited = 0.0
        self.seconds = 0.0
        self._threads: ThreadPoolExecutor | None = None
        self._coming: dict[int, Future[None]] = {}
        if plan.placements:
            self._threads = ThreadPoolExecutor(self._lane.threads, "ragblend-loader")
            self._coming = {layer: self._threads.submit(self._load, layer) for layer in range(adapter.layer_count)}

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def place(self, layer: int) -> None:
        """Make sure that ``layer`` is placed. Raises LostChunkError, GenerationCancelled."""
        if self._cancelled():
            raise GenerationCancelled("the request was cancelled before its first token")
        if layer not in self._coming:
            return
        began = time.perf_counter()
        self._coming.pop(layer).result()  # in no variable: a failure's traceback would keep the future, and it that
        self.waited += time.perf_counter() - began
        self._lane.join(layer)

    def expected_s(self) -> float:
        """Seconds that loading will take, as the faster of the first two layers shows. Raises LostChunkError.

        To be asked before the first layer is placed. One layer alone may have met the disk's first turn.
        """
        first = range(min(2, len(self._coming)))
        for layer in first:
            self._coming[layer].result()
        fastest = min((self._layer_s[layer] for layer in first), default=0.0)
        return fastest * len(self._coming) / self._lane.threads

    def close(self) -> None:
        """Stop loading, and wait until no thread works on it any more. Closing twice is no error."""
        self._closed.set()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._lane.close()
        self._coming.clear()

    def _load(self, layer: int) -> None:
        began = time.perf_counter()
        with torch.inference_mode(), self._lane.loading(layer):
            cos, sin, rotation = self._adapter.rotary.turning(layer, self._angles)
            self._place(layer, self._standing, cos, sin, "none")
            self._place(layer, self._moved, cos, sin, rotation)
        ended = time.perf_counter()
        self._layer_s[layer], self.seconds = ended - began, ended - self._began

    def _place(self, layer: int, placements: Sequence[Placement], cos: Tensor, sin: Tensor, rotation: Rotation) -> None:
        """Place all of ``placements`` at once; cos and sin begin at the first of them."""
        keys, values = self._canvas.keys(layer)[0], self._canvas.values(layer)[0]
        chunks = []
        for placement in placements:
            if self._closed.is_set():
                return
            chunks.append(self._lane.bring(_read(placement, layer, keys.dtype)))
        if chunks:
            starts = [placement.start for placement in placements]
            ops.place_chunks(chunks, starts, keys, values, cos, sin, starts[0], rotation, impl=self._adapter.kernels)


def _read(placement: Placement, layer: int, dtype: torch.dtype) -> LayerKV:
    """One layer of one chunk, where it lies; compact as it is kept, else in the canvas' type."""
    try:
        kv = placement.reader.layer(layer)
    except EntryError as error:
        raise LostChunkError(placement.key or "", error) from error
    wanted = dtype if kv.codec == "raw" else None
    return kv.map(lambda tensor: tensor.to(dtype=wanted).contiguous())
