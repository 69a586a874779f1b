"""Seconds that an operation takes on a device, and what the device can do at most, measured alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What the device reaches in this run. copy: bytes read and written a second, by a copy within its memory.

    matmul: floating-point operations a second, of a large product in the benchmark's dtype. upload: bytes a
    second from pinned host memory (of a plain copy on a CPU).
    """

    copy_bytes_s: float
    matmul_flops_s: float
    upload_bytes_s: float


def seconds_of(device: torch.device, operation: Callable[[], object]) -> float:
    """What ``operation`` takes, once, from an idle device on."""
    _wait(device)
    began = time.perf_counter()
    operation()
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Clock:
    """Times operations on one device: medians, after warming up, with the caches cold."""

    def __init__(self, device: torch.device, repeats: int) -> None:
        self.device = device
        self.repeats = repeats
        # Larger than any level-two cache: writing to it evicts what an operation would find there.
        size = 256 << 20 if device.type == "cuda" else 1 << 20
        self._evict = torch.empty(size, dtype=torch.int8, device=device)

    def seconds(self, operation: Callable[[], object]) -> float:
        """The median time of ``operation``."""
        for _ in range(2):
            operation()
        return statistics.median(self._once(operation) for _ in range(self.repeats))

    def _once(self, operation: Callable[[], object]) -> float:
        self._evict.zero_()
        if self.device.type != "cuda":
            began = time.perf_counter()
            operation()
            return time.perf_counter() - began
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        operation()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1000

    def ceilings(self, dtype: torch.dtype) -> Ceilings:
        """Measure them: a gigabyte copied and uploaded, products of 8192 x 8192 (small ones on a CPU)."""
        large = self.device.type == "cuda"
        size = 1 << (30 if large else 20)
        copy = 2 * self._copies_a_second(torch.ones(size, dtype=torch.uint8, device=self.device))
        upload = self._copies_a_second(torch.ones(size, dtype=torch.uint8, pin_memory=large))
        edge = 8192 if large else 256
        left, right = (torch.randn(edge, edge, device=self.device).to(dtype) for _ in range(2))
        return Ceilings(copy, 2 * edge**3 / self.seconds(lambda: left @ right), upload)

    def _copies_a_second(self, source: Tensor) -> float:
        """Bytes of ``source`` a second, copied to the device's memory."""
        target = torch.empty_like(source, device=self.device)
        return source.nbytes / self.seconds(lambda: target.copy_(source, non_blocking=True))

    def flash_flops_s(self, query: Tensor, keys: Tensor, values: Tensor) -> float:
        """Useful operations a second of torch's own causal attention of all rows: 4 a head, dimension and pair."""
        _, heads, count, head_dim = query.shape
        seconds = self.seconds(
            lambda: scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
        )
        return 2 * heads * head_dim * count * (count + 1) / seconds
