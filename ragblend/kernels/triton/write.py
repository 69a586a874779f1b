"""Writing the fresh keys and values of scattered rows into the canvas, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from ragblend.kernels.triton.lines import in_rows_of
from ragblend.kernels.triton.target import launch, options

_BLOCK_ROWS = 16


def write_rows(fresh_keys: Tensor, fresh_values: Tensor, rows: Tensor, keys: Tensor, values: Tensor) -> None:
    """See ``reference.write_rows``. The canvas' buffers are contiguous."""
    batch, kv_heads, row_count, head_dim = fresh_keys.shape
    fresh_keys, key_strides = in_rows_of(fresh_keys)
    fresh_values, value_strides = in_rows_of(fresh_values)
    launch(
        write_kernel,
        (triton.cdiv(row_count, _BLOCK_ROWS), batch * kv_heads),
        fresh_keys,
        fresh_values,
        rows,
        keys,
        values,
        row_count,
        keys.shape[2],
        kv_heads,
        *key_strides,
        *value_strides,
        HEAD_DIM=head_dim,
        PADDED_DIM=triton.next_power_of_2(head_dim),
        BLOCK_ROWS=_BLOCK_ROWS,
        **options(warps=4, stages=1),
    )


@triton.jit(
    do_not_specialize=[
        "row_count",
        "capacity",
        "kv_heads",
        "key_batch",
        "key_head",
        "key_row",
        "value_batch",
        "value_head",
        "value_row",
    ]
)
def write_kernel(
    fresh_keys,
    fresh_values,
    rows,
    keys,
    values,
    row_count,
    capacity,
    kv_heads,
    key_batch,
    key_head,
    key_row,
    value_batch,
    value_head,
    value_row,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
):
    """A block of rows of one kv head. Strides are in units of HEAD_DIM."""
    pair = tl.program_id(1).to(tl.int64)
    batch, kv_head = pair // kv_heads, pair % kv_heads
    row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    dim = tl.arange(0, PADDED_DIM)
    exists = row < row_count
    mask = exists[:, None] & (dim < HEAD_DIM)[None, :]
    position = tl.load(rows + row, mask=exists, other=0)
    target = (pair * capacity + position)[:, None] * HEAD_DIM + dim[None, :]
    key_at = (batch * key_batch + kv_head * key_head + row * key_row)[:, None] * HEAD_DIM + dim[None, :]
    tl.store(keys + target, tl.load(fresh_keys + key_at, mask=mask), mask=mask)
    value_at = (batch * value_batch + kv_head * value_head + row * value_row)[:, None] * HEAD_DIM + dim[None, :]
    tl.store(values + target, tl.load(fresh_values + value_at, mask=mask), mask=mask)
