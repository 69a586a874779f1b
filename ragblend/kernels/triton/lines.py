"""What the attention kernels share: lines, loads of their queries and of keys, and logits.

All heads that share a kv head are computed together, so that keys are read once for them. A *line* is one
row in one of these heads; lines of a row stand side by side, and rows are sorted, so a tile of lines needs
the keys up to its last line's position.

Logits are in base 2: the hardware's exponential is. ``scale`` and ``cap`` carry the factor (see ``logit_factors``).
"""

from __future__ import annotations

import math

import triton
import triton.language as tl
from torch import Tensor

from ragblend.kernels.layout import Attention

LOG2_E = math.log2(math.e)


def logit_factors(attention: Attention) -> tuple[float, float]:
    """``scale`` and ``cap`` for ``line_logits``."""
    if attention.softcap is None:
        return attention.scaling * LOG2_E, 0.0
    return 2.0 * attention.scaling / attention.softcap, attention.softcap * LOG2_E


def in_rows_of(tensor: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
    """A [batch, heads, n, head_dim] tensor and its strides in units of head_dim; copied if they are not whole.

    In these units strides tell the compiler nothing that changes from prompt to prompt, and addresses
    stay known to be multiples of head_dim.
    """
    head_dim = tensor.shape[3]
    strides = tensor.stride()[:3]
    if (tensor.stride(3) != 1 and head_dim > 1) or any(stride % head_dim for stride in strides):
        tensor = tensor.contiguous()
        strides = tensor.stride()[:3]
    batch, head, row = (stride // head_dim for stride in strides)
    return tensor, (batch, head, row)


@triton.jit
def tile_rows(tile, row_count, GROUPS: tl.constexpr, BLOCK_LINES: tl.constexpr):
    """Of a tile's lines: the rows, whether they exist, and the heads within the group."""
    line = tile * BLOCK_LINES + tl.arange(0, BLOCK_LINES)
    row = line // GROUPS
    return row, row < row_count, line % GROUPS


@triton.jit
def tile_span(rows, tile, row_count, GROUPS: tl.constexpr, BLOCK_LINES: tl.constexpr):
    """Positions of a tile's first and last row."""
    first = tl.load(rows + tile * BLOCK_LINES // GROUPS)
    final_row = tl.minimum((tile * BLOCK_LINES + BLOCK_LINES - 1) // GROUPS, row_count - 1)
    last = tl.load(rows + final_row)
    return first.to(tl.int32), last.to(tl.int32)


@triton.jit
def split_range(begin, end, split, splits, BLOCK_KEYS: tl.constexpr):
    """The part of the keys begin..end-1 that a split takes, in whole blocks."""
    each = tl.cdiv(tl.cdiv(tl.maximum(end - begin, 0), BLOCK_KEYS), splits) * BLOCK_KEYS
    own = begin + split * each
    return own, tl.minimum(end, own + each)


@triton.jit
def load_lines(
    query,
    row,
    head,
    exists,
    head_stride,
    row_stride,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
):
    """Queries of a tile's lines, [BLOCK_LINES, PADDED_DIM]; zeros beyond head_dim."""
    dim = tl.arange(0, PADDED_DIM)
    at = (head.to(tl.int64) * head_stride + row.to(tl.int64) * row_stride) * HEAD_DIM
    return tl.load(query + at[:, None] + dim[None, :], mask=exists[:, None] & (dim < HEAD_DIM)[None, :], other=0.0)


@triton.jit
def load_positions(
    base, start, end, BLOCK_KEYS: tl.constexpr, HEAD_DIM: tl.constexpr, PADDED_DIM: tl.constexpr, MASKED: tl.constexpr
):
    """A block of keys or values from position ``start``, [BLOCK_KEYS, PADDED_DIM]; zeros from ``end`` on."""
    key = tl.arange(0, BLOCK_KEYS)
    dim = tl.arange(0, PADDED_DIM)
    at = base + tl.cast(start, tl.int64) * HEAD_DIM + key[:, None] * HEAD_DIM + dim[None, :]
    if MASKED:
        block = tl.load(at, mask=(start + key < end)[:, None] & (dim < HEAD_DIM)[None, :], other=0.0)
    elif HEAD_DIM == PADDED_DIM:
        block = tl.load(at)
    else:
        block = tl.load(at, mask=(dim < HEAD_DIM)[None, :], other=0.0)
    return block


@triton.jit
def line_logits(query, keys, scale, cap, CAPPED: tl.constexpr, PRECISION: tl.constexpr):
    """Logits of lines by keys in base 2, before the mask."""
    product = tl.dot(query, tl.trans(keys), input_precision=PRECISION) * scale
    if CAPPED:
        # cap * tanh(x / 2) where the product is x
        product = cap * (2.0 * tl.sigmoid(product) - 1.0)
    return product


@triton.jit
def hide_unseen(logits, positions, start, end, window, WINDOWED: tl.constexpr, BLOCK_KEYS: tl.constexpr):
    """Logits with minus infinity where a line's row does not see the key."""
    key = start + tl.arange(0, BLOCK_KEYS)
    seen = (key[None, :] <= positions[:, None]) & (key < end)[None, :]
    if WINDOWED:
        seen = seen & (key[None, :] > positions[:, None] - window)
    return tl.where(seen, logits, float("-inf"))
