"""Plain torch forms of every kernel: slow, obvious, computed in fp32. They are what the fast ones must equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ragblend.kernels.layout import Attention, LayerKV, Rotation
from ragblend.kernels.quantise import dequantise


def rotate_(keys: Tensor, cos: Tensor, sin: Tensor, rotation: Rotation) -> None:
    """Rotate ``keys`` [..., tokens, head_dim] in place, in fp32, by angles [tokens, pairs]."""
    if rotation == "none":
        return
    pairs = cos.shape[-1]
    turned = keys[..., : 2 * pairs]
    if rotation == "half":
        first, second = turned[..., :pairs], turned[..., pairs:]
    else:
        first, second = turned[..., 0::2], turned[..., 1::2]
    a, b = first.float(), second.float()
    turned_first, turned_second = a * cos - b * sin, b * cos + a * sin
    first.copy_(turned_first)
    second.copy_(turned_second)


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
    """Dequantise each chunk, turn its keys to its positions, all in fp32, and write it to the canvas."""
    for chunk, start in zip(chunks, starts, strict=True):
        place, angles = slice(start, start + chunk.tokens), slice(start - first, start - first + chunk.tokens)
        some_keys, some_values = (tensor.to(keys.device, copy=True) for tensor in dequantise(chunk))
        some_keys = some_keys.float()
        rotate_(some_keys, cos[angles], sin[angles], rotation)
        keys[:, place] = some_keys.to(keys.dtype)
        values[:, place] = some_values.to(values.dtype)


def write_rows(fresh_keys: Tensor, fresh_values: Tensor, rows: Tensor, keys: Tensor, values: Tensor) -> None:
    """Write fresh keys and values [batch, kv_heads, rows, head_dim] to their rows of the canvas."""
    keys.index_copy_(2, rows, fresh_keys)
    values.index_copy_(2, rows, fresh_values)


def visible(rows: Tensor, key_count: int, window: int | None) -> Tensor:
    """[rows, keys] bool: a row sees the keys at or before its own position, inside the window."""
    keys = torch.arange(key_count, device=rows.device)
    seen = keys <= rows[:, None]
    return seen if window is None else seen & (keys > rows[:, None] - window)


def scores(query: Tensor, keys: Tensor, rows: Tensor, attention: Attention) -> Tensor:
    """Masked logits [batch, heads, rows, keys] in fp32."""
    groups = query.shape[1] // keys.shape[1]
    logits = query.float() @ keys.float().repeat_interleave(groups, dim=1).transpose(-1, -2) * attention.scaling
    if attention.softcap is not None:
        logits = torch.tanh(logits / attention.softcap) * attention.softcap
    return logits.masked_fill(~visible(rows, keys.shape[2], attention.window), float("-inf"))


def probabilities(query: Tensor, keys: Tensor, rows: Tensor, attention: Attention) -> Tensor:
    """Attention weights [batch, heads, rows, keys] in fp32; with sinks they sum to less than one."""
    logits = scores(query, keys, rows, attention)
    if attention.sinks is None:
        return logits.softmax(dim=-1)
    sinks = attention.sinks.float().reshape(1, -1, 1, 1).expand(*logits.shape[:-1], 1)
    return torch.cat([logits, sinks], dim=-1).softmax(dim=-1)[..., :-1]


def attend_rows(query: Tensor, keys: Tensor, values: Tensor, rows: Tensor, attention: Attention) -> Tensor:
    """Attention of scattered rows over all keys: [batch, heads, rows, head_dim] in the query's dtype."""
    groups = query.shape[1] // values.shape[1]
    weights = probabilities(query, keys, rows, attention)
    return (weights @ values.float().repeat_interleave(groups, dim=1)).to(query.dtype)


def attention_received(query: Tensor, keys: Tensor, rows: Tensor, attention: Attention) -> Tensor:
    """How much of the rows' attention each key receives: [keys] in fp32, mean over heads and rows."""
    return probabilities(query, keys, rows, attention).mean(dim=(0, 1, 2))


def deviation(fresh: Tensor, stored: Tensor, rows: Tensor) -> Tensor:
    """Squared distance per row between fresh [kv_heads, rows, head_dim] and what is stored there: [rows] fp32."""
    return (fresh.float() - stored.index_select(1, rows).float()).square().sum(dim=(0, 2))
