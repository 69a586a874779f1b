"""How much of some rows' attention each key receives, without a matrix of rows by keys.

Two passes, as in the backward pass of flash attention: the first finds what each line's softmax sums up
to, the second turns logits into weights and adds them up over lines.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ragblend.kernels.layout import Attention
from ragblend.kernels.triton.lines import (
    LOG2_E,
    hide_unseen,
    line_logits,
    load_lines,
    load_positions,
    split_range,
    tile_rows,
    tile_span,
)
from ragblend.kernels.triton.target import Blocks, launch
from ragblend.kernels.triton.tiling import CHANGING, tiling


def attention_received(
    query: Tensor,
    keys: Tensor,
    rows: Tensor,
    attention: Attention,
    blocks: Blocks | None = None,
    splits: int | None = None,
) -> Tensor:
    """See ``reference.attention_received``. ``rows`` must be sorted. blocks, splits: as in ``attend_rows``."""
    batch, heads, row_count, _ = query.shape
    cut = tiling(query, keys, attention, blocks, splits)
    key_count = keys.shape[2]
    # keys after the first pass: a number for each line of each part
    sums = torch.empty(cut.parts_of_lines(), dtype=torch.float32, device=query.device)
    received = torch.empty(cut.pairs, key_count, dtype=torch.float32, device=query.device)
    sizes = (*cut.counts, *cut.strides, *cut.logits)
    launch(sums_kernel, (cut.tiles, cut.pairs, cut.splits), cut.query, cut.keys, rows, sums, *sizes, **cut.constants)
    grid = (triton.cdiv(key_count, cut.blocks.keys), cut.pairs)
    launch(received_kernel, grid, cut.query, cut.keys, rows, _whole(sums, attention), received, *sizes, **cut.constants)
    return received.sum(dim=0) / (batch * heads * row_count)


def _whole(sums: Tensor, attention: Attention) -> Tensor:
    """Log2 of each line's whole softmax sum, [batch, rows, heads], from its parts and the head's sink."""
    natural = torch.logsumexp(sums * math.log(2.0), dim=0)
    if attention.sinks is not None:
        natural = torch.logaddexp(natural, attention.sinks.float())
    return natural * LOG2_E


@triton.jit(do_not_specialize=[*CHANGING])
def sums_kernel(
    query,
    keys,
    rows,
    sums,
    row_count,
    key_count,
    kv_heads,
    query_batch,
    query_head,
    query_row,
    key_batch,
    key_head,
    scale,
    cap,
    window,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_LINES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Log2 of a tile's softmax sums over one part of the keys. Strides are in units of HEAD_DIM."""
    tile = tl.program_id(0)
    batch = (tl.program_id(1) // kv_heads).to(tl.int64)
    kv_head = (tl.program_id(1) % kv_heads).to(tl.int64)
    row, exists, head = tile_rows(tile, row_count, GROUPS, BLOCK_LINES)
    first, last = tile_span(rows, tile, row_count, GROUPS, BLOCK_LINES)
    positions = tl.load(rows + row, mask=exists, other=0).to(tl.int32)
    query += (batch * query_batch + kv_head * GROUPS * query_head) * HEAD_DIM
    keys += (batch * key_batch + kv_head * key_head) * HEAD_DIM
    lines = load_lines(query, row, head, exists, query_head, query_row, HEAD_DIM, PADDED_DIM)
    begin = 0
    if WINDOWED:
        begin = tl.maximum(first - window + 1, 0) // BLOCK_KEYS * BLOCK_KEYS
    begin, end = split_range(begin, tl.minimum(last + 1, key_count), tl.program_id(2), tl.num_programs(2), BLOCK_KEYS)
    largest = tl.full([BLOCK_LINES], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_LINES], tl.float32)
    for start in range(begin, end, BLOCK_KEYS):
        block = load_positions(keys, start, end, BLOCK_KEYS, HEAD_DIM, PADDED_DIM, True)
        logits = line_logits(lines, block, scale, cap, CAPPED, PRECISION)
        logits = hide_unseen(logits, positions, start, end, window, WINDOWED, BLOCK_KEYS)
        top = tl.maximum(largest, tl.max(logits, 1))
        base = tl.where(top == float("-inf"), 0.0, top)
        total = total * tl.exp2(largest - base) + tl.sum(tl.exp2(logits - base[:, None]), 1)
        largest = top
    logs = tl.where(total > 0.0, largest + tl.log2(tl.where(total > 0.0, total, 1.0)), float("-inf"))
    heads = kv_heads * GROUPS
    line_at = (batch * row_count + row.to(tl.int64)) * heads + kv_head * GROUPS + head
    part = tl.program_id(2).to(tl.int64) * (tl.num_programs(1) // kv_heads) * row_count * heads + line_at
    tl.store(sums + part, logs, mask=exists)


@triton.jit(do_not_specialize=[*CHANGING])
def received_kernel(
    query,
    keys,
    rows,
    whole,
    received,
    row_count,
    key_count,
    kv_heads,
    query_batch,
    query_head,
    query_row,
    key_batch,
    key_head,
    scale,
    cap,
    window,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK_LINES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """A block of keys of one kv head: the weights of all lines, added up. Strides are in units of HEAD_DIM."""
    start = tl.program_id(0) * BLOCK_KEYS
    batch = (tl.program_id(1) // kv_heads).to(tl.int64)
    kv_head = (tl.program_id(1) % kv_heads).to(tl.int64)
    query += (batch * query_batch + kv_head * GROUPS * query_head) * HEAD_DIM
    keys += (batch * key_batch + kv_head * key_head) * HEAD_DIM
    block = load_positions(keys, start, key_count, BLOCK_KEYS, HEAD_DIM, PADDED_DIM, True)
    sums = tl.zeros([BLOCK_KEYS], tl.float32)
    for tile in range(tl.cdiv(row_count * GROUPS, BLOCK_LINES)):
        row, exists, head = tile_rows(tile, row_count, GROUPS, BLOCK_LINES)
        positions = tl.load(rows + row, mask=exists, other=-1).to(tl.int32)
        lines = load_lines(query, row, head, exists, query_head, query_row, HEAD_DIM, PADDED_DIM)
        line_at = (batch * row_count + row.to(tl.int64)) * kv_heads * GROUPS + kv_head * GROUPS + head
        logs = tl.load(whole + line_at, mask=exists, other=0.0)
        logits = line_logits(lines, block, scale, cap, CAPPED, PRECISION)
        logits = hide_unseen(logits, positions, start, key_count, window, WINDOWED, BLOCK_KEYS)
        sums += tl.sum(tl.exp2(logits - logs[:, None]), 0)
    key = start + tl.arange(0, BLOCK_KEYS)
    at = tl.program_id(1).to(tl.int64) * key_count + key
    tl.store(received + at, sums, mask=key < key_count)
