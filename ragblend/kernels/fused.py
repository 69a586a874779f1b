"""The same operations by torch's own ones, mostly its fused attention: for CPUs and for GPUs without Triton."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ragblend.kernels import reference
from ragblend.kernels.layout import Attention, LayerKV, Rotation
from ragblend.kernels.quantise import dequantise

# Rows are sorted, so a block of them needs only the keys up to its last row. Small blocks skip more
# keys, large ones keep the matrix products efficient.
_LARGEST_BLOCK = 96

# From so many numbers in a layer's keys on, a single row is attended faster by two products than by fused attention,
# which has no more tasks than kv heads and does not use bf16 instructions: in half the time at 4,096 tokens.
_MANY_NUMBERS = 1 << 18

# Plain already, and as fast as torch can do them.
write_rows = reference.write_rows
deviation = reference.deviation


def place_chunks(
    chunks: Sequence[LayerKV],
    starts: Sequence[int],
    keys: Tensor,
    values: Tensor,
    cos: Tensor,
    sin: Tensor,
    first: int,
    rotation: Rotation,
) -> None:
    """See ``reference.place_chunks``. Raw chunks that stand side by side are turned together."""
    for run in _runs(chunks, starts):
        begin, end = run[0][1], run[-1][1] + run[-1][0].tokens
        angles = slice(begin - first, end - first)
        if run[0][0].codec == "raw":
            for chunk, start in run:
                keys[:, start : start + chunk.tokens] = chunk.keys
                values[:, start : start + chunk.tokens] = chunk.values
            reference.rotate_(keys[:, begin:end], cos[angles], sin[angles], rotation)
        else:  # rounded to the canvas' type once, after they are turned
            turned, values[:, begin:end] = dequantise(run[0][0].map(lambda tensor: tensor.to(keys.device)))
            reference.rotate_(turned, cos[angles], sin[angles], rotation)
            keys[:, begin:end] = turned


def _runs(chunks: Sequence[LayerKV], starts: Sequence[int]) -> Iterator[list[tuple[LayerKV, int]]]:
    """Chunks with their starts, raw ones together that follow one another without a gap."""
    run: list[tuple[LayerKV, int]] = []
    for chunk, start in sorted(zip(chunks, starts, strict=True), key=lambda placed: placed[1]):
        follows = run and run[-1][1] + run[-1][0].tokens == start
        if run and not (follows and chunk.codec == run[-1][0].codec == "raw"):
            yield run
            run = []
        run.append((chunk, start))
    if run:
        yield run


def attend_rows(query: Tensor, keys: Tensor, values: Tensor, rows: Tensor, attention: Attention) -> Tensor:
    """See ``reference.attend_rows``. ``rows`` must be sorted."""
    count, key_count = query.shape[2], keys.shape[2]
    block_form = _block_form(query, attention)
    if block_form is _fused_block and attention.window is None and count == key_count and count > 1:
        return _fused(query, keys, values, attention, causal=True)
    block = ceil(count / ceil(count / _LARGEST_BLOCK))
    if block_form is _product_block:
        block_form = partial(_product_block, space=_space(query, block, key_count, keys.shape[1]))
    parts = []
    for start in range(0, count, block):
        some = rows[start : start + block]
        first, last = int(some[0]), int(some[-1])
        begin = 0 if attention.window is None else max(0, first - attention.window + 1)
        seen = slice(begin, last + 1)
        parts.append(
            block_form(
                query[:, :, start : start + block], keys[:, :, seen], values[:, :, seen], some - begin, attention
            )
        )
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def attention_received(query: Tensor, keys: Tensor, rows: Tensor, attention: Attention) -> Tensor:
    """See ``reference.attention_received``. ``rows`` must be sorted."""
    if attention.softcap is not None or attention.sinks is not None:
        return reference.attention_received(query, keys, rows, attention)
    received = torch.zeros(keys.shape[2], device=query.device)
    space = _space(query, query.shape[2], keys.shape[2], keys.shape[1])
    for _, _, weights in _group_weights(query, keys, rows, attention, space):
        received += weights.sum(dim=0, dtype=torch.float32)
    return received / (query.shape[0] * query.shape[1] * query.shape[2])


def _block_form(query: Tensor, attention: Attention) -> Callable[..., Tensor]:
    """How a block of rows is attended: by fused attention, unless it cannot or is the slower way."""
    if attention.softcap is not None or attention.sinks is not None:
        return reference.attend_rows
    if query.device.type == "cpu" and query.dtype == torch.bfloat16 and query.shape[2] > 1:
        return _product_block
    return _fused_block


def _product_block(
    query: Tensor, keys: Tensor, values: Tensor, rows: Tensor, attention: Attention, space: Tensor
) -> Tensor:
    """Two matrix products with a softmax between.

    On CPUs with bf16 instructions twice as fast as torch 2.13's fused attention, which does not use them.
    """
    _, heads, count, _ = query.shape
    groups = heads // keys.shape[1]
    result = query.new_empty(*query.shape[:3], values.shape[-1])
    for entry, head, weights in _group_weights(query, keys, rows, attention, space):
        attended = result[entry, head * groups : (head + 1) * groups].view(groups * count, -1)
        torch.mm(weights, values[entry, head], out=attended)
    return result


def _space(query: Tensor, rows: int, keys: int, kv_heads: int) -> Tensor:
    """Where the scores of a kv head's group and what softmax makes of them go, of so many rows and keys.

    Megabytes that are asked for anew with every product come from the system page by page, which takes as long as the
    product.
    """
    return query.new_empty(2, query.shape[1] // kv_heads * rows * keys)


def _group_weights(
    query: Tensor, keys: Tensor, rows: Tensor, attention: Attention, space: Tensor
) -> Iterator[tuple[int, int, Tensor]]:
    """Attention weights [groups * rows, keys] of each batch entry and kv head, in the query's dtype, in ``space``.

    One product a kv head: the canvas' slices stay views, where a batched product copies them.
    """
    batch, heads, count, head_dim = query.shape
    kv_heads, key_count = keys.shape[1], keys.shape[2]
    groups = heads // kv_heads
    begin = 0 if attention.window is not None else int(rows[0]) + 1  # keys before are seen by every row
    seen = reference.visible(rows - begin, key_count - begin, attention.window)
    bias = query.new_zeros(seen.shape).masked_fill_(seen.logical_not_(), float("-inf"))
    scores, weights = (part[: groups * count * key_count].view(groups * count, key_count) for part in space)
    for entry in range(batch):
        for head in range(kv_heads):
            folded = query[entry, head * groups : (head + 1) * groups].reshape(-1, head_dim)
            scores.addmm_(folded, keys[entry, head].t(), beta=0, alpha=attention.scaling)
            scores.view(groups, count, key_count)[..., begin:].add_(bias)
            yield entry, head, torch.softmax(scores, dim=-1, out=weights)


def _fused_block(query: Tensor, keys: Tensor, values: Tensor, rows: Tensor, attention: Attention) -> Tensor:
    if query.shape[2] == 1:
        return _attend_one_row(query, keys, values, attention)
    mask = reference.visible(rows, keys.shape[2], attention.window)
    return _fused(query, keys, values, attention, mask=mask)


def _attend_one_row(query: Tensor, keys: Tensor, values: Tensor, attention: Attention) -> Tensor:
    """All keys are visible: the heads of a group become rows of one product (7x faster than GQA in torch 2.13)."""
    batch, heads, _, head_dim = query.shape
    kv_heads = keys.shape[1]
    if query.device.type == "cpu" and keys[0].numel() >= _MANY_NUMBERS:
        folded = query.reshape(batch * kv_heads, -1, head_dim).transpose(1, 2)
        scores = torch.bmm(keys.flatten(0, 1), folded).transpose(1, 2).mul(attention.scaling)
        attended = torch.bmm(scores.softmax(dim=-1), values.flatten(0, 1))
    else:
        attended = _fused(query.reshape(batch, kv_heads, -1, head_dim), keys, values, attention)
    return attended.reshape(batch, heads, 1, -1)


def _fused(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    attention: Attention,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    return scaled_dot_product_attention(
        query,
        keys,
        values,
        attn_mask=mask,
        is_causal=causal,
        scale=attention.scaling,
        enable_gqa=query.shape[1] != keys.shape[1],
    )
