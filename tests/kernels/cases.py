"""Inputs on which a fast form of a kernel must equal its oracle, shared by all forms."""

from __future__ import annotations

import torch
from torch import Tensor

from ragblend.kernels import ops
from ragblend.kernels.implementation import Implementation
from ragblend.kernels.layout import Codec, Rotation
from ragblend.kernels.quantise import quantise

# name -> (rows, keys): rows at both ends, one row, one key, all rows, odd sizes around a block.
CASES = {
    "one row, one key": ([0], 1),
    "one row in the middle": ([40], 111),
    "last row": ([110], 111),
    "both ends": ([0, 1, 109, 110], 111),
    "63 rows": (list(range(63)), 63),
    "all rows": (list(range(111)), 111),
    "all but the first": (list(range(1, 111)), 111),
    "scattered": (list(range(0, 333, 2)), 333),
    "more than a block": (list(range(5, 300)), 333),
}
CODECS: tuple[Codec, ...] = ("raw", "int8", "fp8", "int4")
# With the pairs of 16 dimensions that turn: all, some, none.
ROTATIONS: tuple[tuple[Rotation, int], ...] = (
    ("half", 8),
    ("half", 3),
    ("interleaved", 8),
    ("interleaved", 3),
    ("none", 0),
)


def inputs(rows, keys, heads, kv_heads, head_dim, dtype, seed=0) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values; the latter are views of a larger canvas that holds NaN behind them."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(1, heads, len(rows), head_dim, generator=generator).to(dtype)
    others = []
    for _ in range(2):
        canvas = torch.randn(1, kv_heads, keys + 9, head_dim, generator=generator).to(dtype)
        canvas[:, :, keys:] = float("nan")
        others.append(canvas[:, :, :keys])
    return query, *others


def placed(
    impl: Implementation, dtype: torch.dtype, codec: Codec, rotation: Rotation, pairs: int, head_dim: int = 16
) -> tuple[Tensor, Tensor]:
    """Keys and values of a canvas of NaN on which three chunks, and one of them again, have been placed."""
    generator = torch.Generator().manual_seed(1)
    chunks = []
    for tokens in (5, 70, 33):
        keys, values = (torch.randn(2, tokens, head_dim, generator=generator).to(dtype) for _ in range(2))
        chunks.append(quantise(keys * 3 + 1, values, codec))
    order, starts = [chunks[1], chunks[0], chunks[2]], [7, 2, 90]
    angles = torch.rand(140, max(pairs, 1), generator=generator) * 6
    keys, values = (torch.full((2, 140, head_dim), float("nan"), dtype=dtype) for _ in range(2))
    ops.place_chunks(order, starts, keys, values, angles.cos(), angles.sin(), 2, rotation, impl=impl)
    return keys, values
