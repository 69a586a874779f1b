"""How an attention kernel is cut into programs for given rows, heads and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from ragblend.kernels.layout import Attention
from ragblend.kernels.triton.lines import in_rows_of, logit_factors
from ragblend.kernels.triton.target import Blocks, precision, processors, target_of

MOST_SPLITS = 64
_SMALLEST_SPLIT = 256  # keys; below, putting parts together costs more than it gains

# What changes from prompt to prompt: no kernel may be compiled anew for it.
CHANGING = (
    "row_count",
    "key_count",
    "kv_heads",
    "query_batch",
    "query_head",
    "query_row",
    "key_batch",
    "key_head",
    "window",
)


@dataclass(frozen=True)
class Tiling:
    """What the attention kernels are launched with.

    query, keys: in rows of head_dim. tiles: of lines. splits: parts of the keys. counts: rows, keys, kv heads.
    strides: of batch, head and row of the query and of batch and head of the keys. logits: scale, cap, window.
    """

    query: Tensor
    keys: Tensor
    blocks: Blocks
    tiles: int
    splits: int
    counts: tuple[int, int, int]
    strides: tuple[int, ...]
    logits: tuple[float, float, int]
    constants: dict[str, Any]

    @property
    def pairs(self) -> int:
        """Batch entries times kv heads."""
        return self.query.shape[0] * self.counts[2]

    def parts_of_lines(self) -> tuple[int, int, int, int]:
        """Shape of a number for each line of each part of the keys."""
        batch, heads, rows, _ = self.query.shape
        return self.splits, batch, rows, heads


def tiling(query: Tensor, keys: Tensor, attention: Attention, blocks: Blocks | None, splits: int | None) -> Tiling:
    """blocks, splits: chosen for the device if None. Raises KernelUnavailableError (a head dimension without tiles)."""
    batch, heads, row_count, head_dim = query.shape
    kv_heads, key_count = keys.shape[1], keys.shape[2]
    groups = heads // kv_heads
    query, query_strides = in_rows_of(query)
    keys, key_strides = in_rows_of(keys)
    if blocks is None:
        blocks = target_of(query.device).blocks(row_count * groups, padded(head_dim), query.element_size())
    tiles = triton.cdiv(row_count * groups, blocks.lines)
    if splits is None:
        splits = _choose_splits(query.device, tiles * batch * kv_heads, key_count)
    scale, cap = logit_factors(attention)
    return Tiling(
        query=query,
        keys=keys,
        blocks=blocks,
        tiles=tiles,
        splits=splits,
        counts=(row_count, key_count, kv_heads),
        strides=(*query_strides, *key_strides[:2]),
        logits=(scale, cap, attention.window or 0),
        constants={
            "HEAD_DIM": head_dim,
            "PADDED_DIM": padded(head_dim),
            "GROUPS": groups,
            "BLOCK_LINES": blocks.lines,
            "BLOCK_KEYS": blocks.keys,
            "WINDOWED": attention.window is not None,
            "CAPPED": attention.softcap is not None,
            "PRECISION": precision(query.device),
            **blocks.options,
        },
    )


def padded(head_dim: int) -> int:
    """The head dimension as tiles have it: a power of two, at least 16."""
    return max(16, int(triton.next_power_of_2(head_dim)))


def _choose_splits(device: torch.device, programs: int, key_count: int) -> int:
    """Into how many parts the keys are split so that every multiprocessor has work: 1 with many rows.

    A power of two, so that few kernels serve every prompt.
    """
    wanted = min(2 * processors(device) // programs, key_count // _SMALLEST_SPLIT, MOST_SPLITS)
    return 1 if wanted <= 1 else 1 << (wanted.bit_length() - 1)
