"""Where a loader's work runs on the device: beside what is computed, and seen by it when it is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ragblend.kernels.layout import LayerKV

# One thread checks and copies about 3 GB/s, a tenth of what a GPU takes.
_THREADS_FOR_A_GPU = 4


class Lane:
    """The lane of a device whose operations are done when they return, such as a CPU.

    threads: how many load at once. One on a CPU: the cores are there to compute. has_own_cores: whether loading takes
    nothing from what is computed.
    """

    threads = 1
    has_own_cores = False

    def bring(self, kv: LayerKV) -> LayerKV:
        """A layer as it can be placed."""
        return kv

    @contextmanager
    def loading(self, layer: int) -> Iterator[None]:  # noqa: ARG002 (nothing has to be waited for)
        """For the block, in which ``layer`` is loaded."""
        yield

    def join(self, layer: int) -> None:
        """Let what is computed from now on see ``layer``, whose block has ended."""

    def close(self) -> None:
        """Wait for everything that was begun."""


class StreamLane(Lane):
    """A CUDA stream of its own. Copies come from pinned memory, so they run while the device computes.

    An event a layer tells the computing stream when the layer is placed. The canvas may lie where that stream is
    still at work for somebody else, so loading begins behind what has been asked of it up to now.
    """

    threads = _THREADS_FOR_A_GPU
    has_own_cores = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._placed: dict[int, torch.cuda.Event] = {}

    def bring(self, kv: LayerKV) -> LayerKV:
        return kv.map(self._upload)

    @contextmanager
    def loading(self, layer: int) -> Iterator[None]:
        placed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self._stream):
            yield
            placed.record(self._stream)
        self._placed[layer] = placed

    def join(self, layer: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._placed[layer])

    def close(self) -> None:
        self._stream.synchronize()

    def _upload(self, tensor: Tensor) -> Tensor:
        """The tensor on the device; torch keeps the pinned memory until the copy is done."""
        if tensor.device.type != "cpu":
            return tensor.to(self._device)
        pinned = tensor if tensor.is_pinned() else tensor.pin_memory()
        return pinned.to(self._device, non_blocking=True)


def lane_beside(device: torch.device) -> Lane:
    """A lane beside what ``device`` computes."""
    return StreamLane(device) if device.type == "cuda" else Lane()
