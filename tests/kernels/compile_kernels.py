"""Compiles every kernel for one target through the code that launches it, and prints what came out as JSON lines.

It runs in a process of its own: whoever wants Triton's interpreter must have asked for it before.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict

import torch

from ragblend.kernels import triton
from ragblend.kernels.layout import Attention
from ragblend.kernels.quantise import quantise
from tests.kernels.target_driver import TargetDriver

Case = tuple[str, Callable[[], None]]
PLAIN = Attention(0.1)
EVERYTHING = Attention(0.1, window=99, softcap=2.0, sinks=torch.ones(8))


def attending(head_dim: int, dtype: torch.dtype, rows: int, attention: Attention, keys: int = 3000) -> None:
    """8 heads on 2 kv heads; few rows are split over the keys."""
    query = torch.empty(1, 8, rows, head_dim, dtype=dtype)
    canvas = torch.empty(1, 2, keys, head_dim, dtype=dtype)
    triton.attend_rows(query, canvas, canvas, torch.arange(rows), attention)


def receiving(head_dim: int, dtype: torch.dtype, rows: int, attention: Attention, keys: int = 3000) -> None:
    query, canvas = torch.empty(1, 8, rows, head_dim, dtype=dtype), torch.empty(1, 2, keys, head_dim, dtype=dtype)
    triton.attention_received(query, canvas, torch.arange(rows), attention)


def placing(head_dim: int, dtype: torch.dtype, codec: str, rotation: str, pairs: int, tokens: int = 100) -> None:
    numbers = torch.ones(2, tokens, head_dim, dtype=dtype)
    canvas, angles = torch.empty(2, 300, head_dim, dtype=dtype), torch.ones(300, max(pairs, 1))
    chunk = quantise(numbers, numbers, codec)
    triton.place_chunks([chunk, chunk], [3, 150], canvas, canvas, angles, angles, 3, rotation)


def moving(head_dim: int, dtype: torch.dtype, rows: int = 5, capacity: int = 99) -> None:
    fresh, canvas = torch.empty(1, 2, rows, head_dim, dtype=dtype), torch.empty(1, 2, capacity, head_dim, dtype=dtype)
    triton.write_rows(fresh, fresh, torch.arange(rows), canvas, canvas)
    triton.deviation(fresh[0], canvas[0], torch.arange(rows))


def cases() -> Iterator[Case]:
    """Every kernel, in the sizes that most models have."""
    yield "attending, one row", lambda: attending(128, torch.bfloat16, 1, PLAIN)
    yield "attending, many rows", lambda: attending(128, torch.bfloat16, 2000, PLAIN)
    yield "attending with everything", lambda: attending(256, torch.float16, 2000, EVERYTHING)
    yield "receiving", lambda: receiving(128, torch.bfloat16, 64, PLAIN)
    yield "placing raw", lambda: placing(128, torch.bfloat16, "raw", "half", 64)
    yield "placing int4", lambda: placing(128, torch.bfloat16, "int4", "half", 64)
    yield "moving", lambda: moving(128, torch.bfloat16)


def more_cases() -> Iterator[Case]:
    """Other types, head dimensions, features and numbers of rows."""
    for head_dim in (64, 96, 128, 256, 512):
        for rows in (1, 40, 2000):
            yield f"attending, {head_dim}", lambda d=head_dim, n=rows: attending(d, torch.bfloat16, n, PLAIN)
            yield f"receiving, {head_dim}", lambda d=head_dim, n=rows: receiving(d, torch.bfloat16, n, PLAIN)
        yield "attending, everything", lambda d=head_dim: attending(d, torch.float16, 2000, EVERYTHING)
        yield "receiving, everything", lambda d=head_dim: receiving(d, torch.float16, 64, EVERYTHING)
    for head_dim in (64, 128):
        yield "attending in fp32", lambda d=head_dim: attending(d, torch.float32, 2000, PLAIN)
    for codec in ("int8", "fp8"):
        yield f"placing {codec}", lambda c=codec: placing(128, torch.bfloat16, c, "half", 64)
    yield "placing raw, interleaved and partial", lambda: placing(128, torch.bfloat16, "raw", "interleaved", 32)
    yield "placing raw in fp32, not rotated", lambda: placing(80, torch.float32, "raw", "none", 0)


def lengths(many_rows: tuple[int, ...]) -> None:
    """Prompts of several lengths: each number of rows, keys and tokens differs."""
    for index, rows in enumerate(many_rows):
        attending(128, torch.bfloat16, rows, PLAIN, keys=1600 + 17 * index)
        attending(128, torch.bfloat16, 1 + rows % 3, PLAIN, keys=900 + 13 * index)
        receiving(128, torch.bfloat16, 20 + rows % 60, PLAIN, keys=1600 + 17 * index)
        placing(128, torch.bfloat16, "raw", "half", 64, tokens=40 + rows % 90)
        moving(128, torch.bfloat16, rows % 90 + 1, capacity=90 + index)


def main(target: str, what: str) -> None:
    with TargetDriver(target) as driver:
        if what == "lengths":
            lengths((48, 1000))
            before = len(driver.compiled)
            lengths((1, 16, 33, 50, 64, 101, 777, 1024, 1500))
            write({"before": before, "more": len(driver.compiled) - before})
            return
        for name, launch in more_cases() if what == "more" else cases():
            before = len(driver.compiled)
            launch()
            for compiled in driver.compiled[before:]:
                write({"case": name, **asdict(compiled)})


def write(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
