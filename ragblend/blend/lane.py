"""Who loads the layers of a request on which device, and how what is computed sees them."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from ragblend.blend.readahead import ReadAhead
from ragblend.blend.stored import StoredLayers
from ragblend.kernels.layout import LayerKV

# Bytes a second from which on a source keeps nobody waiting: the page cache and memory are faster, disks slower.
FAST_SOURCE = 1e9

# What may lie read and not yet placed. More would help no one: memory that has to be got anew costs more time to fill
# than what the last layers lay in.
READ_AHEAD_BYTES = 1 << 26

# One thread checks and copies about 3 GB/s, a tenth of what a GPU takes.
_THREADS_FOR_A_GPU = 4


class Lane(Protocol):
    """threads: how many read at once."""

    threads: ClassVar[int]

    def bring(self, layer: int) -> None:
        """Let what is computed from now on see ``layer`` placed. Once for each layer. Raises LostChunkError."""
        ...

    def close(self) -> None:
        """Wait for everything that was begun; ``StoredLayers.stop`` makes that short."""
        ...


class ComputingLane:
    """Who computes places, for the cores that place are the cores that compute.

    Reading is left to a thread where it means waiting: the first layer is read by who needs it, and if it comes
    slowly, a thread reads the others ahead. From the page cache or memory a thread would only take a core's time.
    """

    threads: ClassVar[int] = 1

    def __init__(self, layers: StoredLayers) -> None:
        self._layers = layers
        self._ahead: ReadAhead[list[LayerKV]] | None = None

    def bring(self, layer: int) -> None:
        chunks = self._ahead.take(layer) if self._ahead else self._read(layer)
        self._layers.place(layer, chunks)

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()

    def _read(self, layer: int) -> list[LayerKV]:
        layers = self._layers
        chunks = layers.read(layer)
        if sum(layers.nbytes.values()) < FAST_SOURCE * sum(layers.read_s.values()):
            missing = [other for other in range(layers.count) if other not in layers.read_s]
            window = max(1, READ_AHEAD_BYTES // max(1, *layers.nbytes.values()))
            self._ahead = ReadAhead(layers.read, missing, window)
        return chunks


class StreamLane:
    """Threads and a CUDA stream of their own: loading takes nothing from what is computed, and begins at once.

    Copies come from pinned memory, so they run while the device computes. The canvas has room for all layers, so no
    buffers are needed. An event a layer tells the computing stream when the layer is placed. The canvas may lie
    where that stream is still at work for somebody else, so loading begins behind what has been asked of it up to now.
    """

    threads: ClassVar[int] = _THREADS_FOR_A_GPU

    def __init__(self, layers: StoredLayers, device: torch.device) -> None:
        self._layers = layers
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._threads = ThreadPoolExecutor(self.threads, "ragblend-loader")
        self._coming: dict[int, Future[torch.cuda.Event]] = {
            layer: self._threads.submit(self._load, layer) for layer in range(layers.count)
        }

    def bring(self, layer: int) -> None:
        placed = self._coming.pop(layer).result()  # the future in no variable: an error's traceback would keep it
        torch.cuda.current_stream(self._device).wait_event(placed)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._coming.clear()
        self._stream.synchronize()

    def _load(self, layer: int) -> torch.cuda.Event:
        placed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            self._layers.place(layer, self._layers.read(layer, lambda kv: kv.map(self._upload)))
            placed.record(self._stream)
        return placed

    def _upload(self, tensor: Tensor) -> Tensor:
        """The tensor on the device; torch keeps the pinned memory until the copy is done."""
        if tensor.device.type != "cpu":
            return tensor.to(self._device)
        tensor = tensor.contiguous()
        pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
        return pinned.to(self._device, non_blocking=True)


def lane_on(device: torch.device, layers: StoredLayers) -> Lane:
    """The lane that suits what computes."""
    return StreamLane(layers, device) if device.type == "cuda" else ComputingLane(layers)
