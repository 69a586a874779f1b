"""Loading: stored layers go to their positions on the canvas, ahead of what is computed."""

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

# Bytes a second from which on a source keeps nobody waiting: the page cache and memory are faster, disks slower.
FAST_SOURCE = 1e9


class LostChunkError(StoreError):
    """A stored layer could not be read in the middle of a request; ``key`` names its entry."""

    def __init__(self, key: str, error: EntryError) -> None:
        super().__init__(str(error))
        self.key = key
        self.cause = error.cause


class Loader:
    """Places a plan's chunks on a canvas, layer after layer and each layer once, ahead of what is computed.

    A layer is read, checked and placed by one task; the canvas has room for all layers, so loading runs as far
    ahead as it gets, and only the bytes of the layers that are being read lie anywhere else. Beside a GPU it starts
    at once. On a CPU a thread beside pays only if it waits for its source, since else it takes the cores that
    compute: the first layer is loaded by who needs it, and shows whether the others are loaded ahead.
    Close it before the plan and the canvas are let go: no thread touches them afterwards.

    waited: seconds that ``place`` took.
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
        self._layer_s: dict[int, float] = {}
        self._read_bytes, self._read_s = 0, 0.0
        self.layer_count = adapter.layer_count
        self.waited = 0.0
        self._to_place = set(range(adapter.layer_count)) if plan.placements else set()
        self._threads: ThreadPoolExecutor | None = None
        self._coming: dict[int, Future[None]] = {}
        if self._lane.has_own_cores:
            self._load_ahead()

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
        if layer not in self._to_place:
            return
        began = time.perf_counter()
        self._bring(layer)
        self.waited += time.perf_counter() - began
        self._to_place.discard(layer)
        self._lane.join(layer)
        if self._threads is None and self._read_bytes < FAST_SOURCE * self._read_s:
            self._load_ahead()

    @property
    def seconds(self) -> float:
        """What loading took so far, whoever did it."""
        return sum(self._layer_s.values()) / self._lane.threads

    def expected_s(self) -> float:
        """Seconds that loading will take, as the faster of the first two layers shows. Raises LostChunkError.

        To be asked before the first layer is placed. One layer alone may have met the disk's first turn.
        """
        first = sorted(self._to_place)[:2]
        for layer in first:
            self._bring(layer)
        fastest = min((self._layer_s[layer] for layer in first), default=0.0)
        return fastest * len(self._to_place) / self._lane.threads

    def close(self) -> None:
        """Stop loading, and wait until no thread works on it any more. Closing twice is no error."""
        self._closed.set()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._lane.close()
        self._coming.clear()

    def _load_ahead(self) -> None:
        """Load what is not placed yet on the lane's threads."""
        layers = sorted(self._to_place - self._layer_s.keys())
        if layers:
            self._threads = ThreadPoolExecutor(self._lane.threads, "ragblend-loader")
            self._coming = {layer: self._threads.submit(self._load, layer) for layer in layers}

    def _bring(self, layer: int) -> None:
        """Wait until the layer is loaded, or load it here if no thread does."""
        if layer in self._coming:
            self._coming.pop(layer).result()  # in no variable: a failure's traceback would keep the future, and it that
        elif layer not in self._layer_s:
            self._load(layer)

    def _load(self, layer: int) -> None:
        began = time.perf_counter()
        with torch.inference_mode(), self._lane.loading(layer):
            cos, sin, rotation = self._adapter.rotary.turning(layer, self._angles)
            self._place(layer, self._standing, cos, sin, "none")
            self._place(layer, self._moved, cos, sin, rotation)
        self._layer_s[layer] = time.perf_counter() - began

    def _place(self, layer: int, placements: Sequence[Placement], cos: Tensor, sin: Tensor, rotation: Rotation) -> None:
        """Place all of ``placements`` at once; cos and sin begin at the first of them."""
        keys, values = self._canvas.keys(layer)[0], self._canvas.values(layer)[0]
        chunks = []
        for placement in placements:
            if self._closed.is_set():
                return
            chunks.append(self._lane.bring(self._read(placement, layer, keys.dtype)))
        if chunks:
            starts = [placement.start for placement in placements]
            ops.place_chunks(chunks, starts, keys, values, cos, sin, starts[0], rotation, impl=self._adapter.kernels)

    def _read(self, placement: Placement, layer: int, dtype: torch.dtype) -> LayerKV:
        """One layer of one chunk, where it lies; compact as it is kept, else in the canvas' type."""
        began = time.perf_counter()
        try:
            kv = placement.reader.layer(layer)
        except EntryError as error:
            raise LostChunkError(placement.key or "", error) from error
        if self._threads is None:
            self._read_s += time.perf_counter() - began
            self._read_bytes += kv.nbytes
        wanted = dtype if kv.codec == "raw" else None
        return kv.map(lambda tensor: tensor.to(dtype=wanted).contiguous())
