"""How far fresh keys or values are from what the canvas holds at their rows, in one pass over both."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ragblend.kernels.triton.lines import in_rows_of
from ragblend.kernels.triton.target import launch, options

_BLOCK_ROWS = 16


def deviation(fresh: Tensor, stored: Tensor, rows: Tensor) -> Tensor:
    """See ``reference.deviation``."""
    kv_heads, row_count, head_dim = fresh.shape
    fresh, (_, fresh_head, fresh_row) = in_rows_of(fresh[None])
    stored, (_, stored_head, stored_row) = in_rows_of(stored[None])
    distance = torch.empty(row_count, dtype=torch.float32, device=fresh.device)
    launch(
        deviation_kernel,
        (triton.cdiv(row_count, _BLOCK_ROWS),),
        fresh,
        stored,
        rows,
        distance,
        row_count,
        kv_heads,
        fresh_head,
        fresh_row,
        stored_head,
        stored_row,
        HEAD_DIM=head_dim,
        PADDED_DIM=triton.next_power_of_2(head_dim),
        BLOCK_ROWS=_BLOCK_ROWS,
        **options(warps=4, stages=1),
    )
    return distance


@triton.jit(
    do_not_specialize=["row_count", "kv_heads", "fresh_head", "fresh_row", "stored_head", "stored_row"],
)
def deviation_kernel(
    fresh,
    stored,
    rows,
    distance,
    row_count,
    kv_heads,
    fresh_head,
    fresh_row,
    stored_head,
    stored_row,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    """A block of rows over all kv heads. Strides are in units of HEAD_DIM."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    dim = tl.arange(0, PADDED_DIM)
    exists = row < row_count
    mask = exists[:, None] & (dim < HEAD_DIM)[None, :]
    position = tl.load(rows + row, mask=exists, other=0)
    fresh_at = (row * fresh_row)[:, None] * HEAD_DIM + dim[None, :]
    stored_at = (position * stored_row)[:, None] * HEAD_DIM + dim[None, :]
    total = tl.zeros([BLOCK_ROWS, PADDED_DIM], tl.float32)
    for kv_head in range(kv_heads):
        fresh_base = fresh + tl.cast(kv_head, tl.int64) * fresh_head * HEAD_DIM
        stored_base = stored + tl.cast(kv_head, tl.int64) * stored_head * HEAD_DIM
        ours = tl.load(fresh_base + fresh_at, mask=mask, other=0.0).to(tl.float32)
        theirs = tl.load(stored_base + stored_at, mask=mask, other=0.0).to(tl.float32)
        total += (ours - theirs) * (ours - theirs)
    tl.store(distance + row, tl.sum(total, 1), mask=exists)
