"""Attention of scattered rows: flash attention whose mask follows from the rows' own positions.

Online softmax: Dao et al., "FlashAttention", arXiv 2205.14135. Few rows are split over the keys and put
together afterwards: Dao et al., "Flash-Decoding" (2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ragblend.kernels.layout import Attention
from ragblend.kernels.triton.lines import (
    hide_unseen,
    in_rows_of,
    line_logits,
    load_lines,
    load_positions,
    split_range,
    tile_rows,
    tile_span,
)
from ragblend.kernels.triton.target import Blocks, launch, options
from ragblend.kernels.triton.tiling import CHANGING, MOST_SPLITS, padded, tiling


def attend_rows(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    attention: Attention,
    blocks: Blocks | None = None,
    splits: int | None = None,
) -> Tensor:
    """See ``reference.attend_rows``. ``rows`` must be sorted. blocks, splits: chosen for the device if None."""
    batch, heads, row_count, head_dim = query.shape
    cut = tiling(query, keys, attention, blocks, splits)
    values, value_strides = in_rows_of(values)
    split = cut.splits > 1
    # Laid out as transformers wants it next: heads of a row side by side.
    attended = query.new_empty(batch, row_count, heads, head_dim)
    lines = cut.parts_of_lines()
    parts = query.new_empty(*lines, head_dim, dtype=torch.float32) if split else attended
    weights = torch.empty(lines, dtype=torch.float32, device=query.device)
    sinks = attention.sinks if attention.sinks is not None else weights
    launch(
        attend_kernel,
        (cut.tiles, cut.pairs, cut.splits),
        cut.query,
        cut.keys,
        values,
        rows,
        sinks,
        parts,
        weights,
        *cut.counts,
        *cut.strides,
        *value_strides[:2],
        *cut.logits,
        SPLIT=split,
        SINKS=attention.sinks is not None,
        **cut.constants,
    )
    if split:
        line_count = batch * row_count * heads
        launch(
            combine_kernel,
            (line_count,),
            parts,
            weights,
            sinks,
            attended,
            line_count,
            cut.splits,
            heads,
            HEAD_DIM=head_dim,
            PADDED_DIM=padded(head_dim),
            PADDED_SPLITS=MOST_SPLITS,
            SINKS=attention.sinks is not None,
            **options(warps=2, stages=1),
        )
    return attended.transpose(1, 2)


@triton.jit(do_not_specialize=[*CHANGING, "value_batch", "value_head"])
def attend_kernel(
    query,
    keys,
    values,
    rows,
    sinks,
    parts,
    part_weights,
    row_count,
    key_count,
    kv_heads,
    query_batch,
    query_head,
    query_row,
    key_batch,
    key_head,
    value_batch,
    value_head,
    scale,
    cap,
    window,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_LINES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of lines over one part of the keys. Strides are in units of HEAD_DIM."""
    # The last rows see most keys: they start first, so that no program is left alone at the end.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    batch = (tl.program_id(1) // kv_heads).to(tl.int64)
    kv_head = (tl.program_id(1) % kv_heads).to(tl.int64)
    split = tl.program_id(2)
    row, exists, head = tile_rows(tile, row_count, GROUPS, BLOCK_LINES)
    first, last = tile_span(rows, tile, row_count, GROUPS, BLOCK_LINES)
    positions = tl.load(rows + row, mask=exists, other=0).to(tl.int32)

    query += (batch * query_batch + kv_head * GROUPS * query_head) * HEAD_DIM
    keys += (batch * key_batch + kv_head * key_head) * HEAD_DIM
    values += (batch * value_batch + kv_head * value_head) * HEAD_DIM
    lines = load_lines(query, row, head, exists, query_head, query_row, HEAD_DIM, PADDED_DIM)

    end = tl.minimum(last + 1, key_count)
    begin = 0
    if WINDOWED:
        begin = tl.maximum(first - window + 1, 0) // BLOCK_KEYS * BLOCK_KEYS
    if SPLIT:
        begin, end = split_range(begin, end, split, tl.num_programs(2), BLOCK_KEYS)
    plain = begin
    if not WINDOWED:
        # Every line sees the blocks that end before the first line's position: no mask is needed there.
        plain = begin + tl.maximum(tl.minimum(first + 1, end) - begin, 0) // BLOCK_KEYS * BLOCK_KEYS

    largest = tl.full([BLOCK_LINES], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_LINES], tl.float32)
    attended = tl.zeros([BLOCK_LINES, PADDED_DIM], tl.float32)
    for start in range(begin, plain, BLOCK_KEYS):
        attended, largest, total = _attend_block(
            attended, largest, total, lines, keys, values, positions, start, end, scale, cap, window,
            HEAD_DIM, PADDED_DIM, BLOCK_KEYS, False, WINDOWED, CAPPED, PRECISION,
        )  # fmt: skip
    for start in range(plain, end, BLOCK_KEYS):
        attended, largest, total = _attend_block(
            attended, largest, total, lines, keys, values, positions, start, end, scale, cap, window,
            HEAD_DIM, PADDED_DIM, BLOCK_KEYS, True, WINDOWED, CAPPED, PRECISION,
        )  # fmt: skip

    dim = tl.arange(0, PADDED_DIM)
    heads = kv_heads * GROUPS
    line_at = (batch * row_count + row.to(tl.int64)) * heads + kv_head * GROUPS + head
    stored = exists[:, None] & (dim < HEAD_DIM)[None, :]
    if SPLIT:
        part = split.to(tl.int64) * (tl.num_programs(1) // kv_heads) * row_count * heads + line_at
        share = attended / tl.where(total > 0.0, total, 1.0)[:, None]
        tl.store(parts + part[:, None] * HEAD_DIM + dim[None, :], share, mask=stored)
        logs = tl.where(total > 0.0, largest + tl.log2(tl.where(total > 0.0, total, 1.0)), float("-inf"))
        tl.store(part_weights + part, logs, mask=exists)
    else:
        if SINKS:
            sink = tl.load(sinks + kv_head * GROUPS + head).to(tl.float32) * 1.4426950408889634
            top = tl.maximum(largest, sink)
            shrink = tl.exp2(largest - top)
            total = total * shrink + tl.exp2(sink - top)
            attended = attended * shrink[:, None]
        share = attended / tl.where(total > 0.0, total, 1.0)[:, None]
        tl.store(parts + line_at[:, None] * HEAD_DIM + dim[None, :], share.to(parts.dtype.element_ty), mask=stored)


@triton.jit
def _attend_block(
    attended,
    largest,
    total,
    lines,
    keys,
    values,
    positions,
    start,
    end,
    scale,
    cap,
    window,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    MASKED: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One step of the online softmax: a block of keys and values."""
    key_block = load_positions(keys, start, end, BLOCK_KEYS, HEAD_DIM, PADDED_DIM, MASKED)
    logits = line_logits(lines, key_block, scale, cap, CAPPED, PRECISION)
    if MASKED:
        logits = hide_unseen(logits, positions, start, end, window, WINDOWED, BLOCK_KEYS)
    top = tl.maximum(largest, tl.max(logits, 1))
    # A line may see nothing yet: minus infinity taken from itself is not a number.
    base = tl.where(top == float("-inf"), 0.0, top) if MASKED else top
    weights = tl.exp2(logits - base[:, None])
    shrink = tl.exp2(largest - base)
    total = total * shrink + tl.sum(weights, 1)
    value_block = load_positions(values, start, end, BLOCK_KEYS, HEAD_DIM, PADDED_DIM, MASKED)
    attended = attended * shrink[:, None]
    attended = tl.dot(weights.to(value_block.dtype), value_block, attended, input_precision=PRECISION)
    return attended, top, total


@triton.jit(do_not_specialize=["line_count", "splits", "heads"])
def combine_kernel(
    parts,
    part_weights,
    sinks,
    attended,
    line_count,
    splits,
    heads,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    SINKS: tl.constexpr,
):
    """One line's parts, weighted by what each part's softmax summed up to (log2)."""
    line = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, PADDED_SPLITS)
    logs = tl.load(part_weights + split.to(tl.int64) * line_count + line, mask=split < splits, other=float("-inf"))
    top = tl.max(logs, 0)
    if SINKS:
        sink = tl.load(sinks + line % heads).to(tl.float32) * 1.4426950408889634
        top = tl.maximum(top, sink)
    total = tl.sum(tl.exp2(logs - top), 0)
    if SINKS:
        total += tl.exp2(sink - top)
    dim = tl.arange(0, PADDED_DIM)
    sums = tl.zeros([PADDED_DIM], tl.float32)
    for index in range(splits):
        at = tl.cast(index, tl.int64) * line_count + line
        weight = tl.exp2(tl.load(part_weights + at) - top) / total
        sums += weight * tl.load(parts + at * HEAD_DIM + dim, mask=dim < HEAD_DIM, other=0.0)
    tl.store(attended + line * HEAD_DIM + dim, sums.to(attended.dtype.element_ty), mask=dim < HEAD_DIM)
