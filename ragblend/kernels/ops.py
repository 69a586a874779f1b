"""The only entry to the kernels: each operation in the form that ``impl`` names (see ``implementation``)."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from torch import Tensor

from ragblend.kernels import fused, reference
from ragblend.kernels.implementation import Implementation, resolve
from ragblend.kernels.layout import Attention, LayerKV, Rotation


def place_chunks(
    chunks: Sequence[LayerKV],
    starts: Sequence[int],
    keys: Tensor,
    values: Tensor,
    cos: Tensor,
    sin: Tensor,
    first: int,
    rotation: Rotation,
    impl: Implementation = "auto",
) -> None:
    """Place one layer of stored chunks on a canvas: dequantise, turn the keys to their positions, write.

    starts: each chunk's first position; chunks do not overlap. keys, values: the canvas' buffers,
    [kv_heads, capacity, head_dim]. cos, sin: angles of the positions from ``first`` on, [positions, pairs]
    fp32 (ignored where rotation is ``none``). Triton places all chunks in one launch and takes them on the
    canvas' device; torch takes them from any.
    """
    form = _form(impl, keys)
    form.place_chunks(chunks, starts, keys, values, cos, sin, first, rotation)


def write_rows(
    fresh_keys: Tensor, fresh_values: Tensor, rows: Tensor, keys: Tensor, values: Tensor, impl: Implementation = "auto"
) -> None:
    """Write fresh keys and values, [batch, kv_heads, rows, head_dim], to their rows of a canvas.

    rows: [rows] int64 positions, each once. keys, values: [batch, kv_heads, capacity, head_dim].
    """
    form = _form(impl, keys)
    form.write_rows(fresh_keys, fresh_values, rows, keys, values)


def attend_rows(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    attention: Attention,
    impl: Implementation = "auto",
) -> Tensor:
    """Attention of scattered rows over a canvas, each over the keys at or before its own position.

    query: [batch, heads, rows, head_dim]. keys, values: [batch, kv_heads, keys, head_dim], key j at
    position j. rows: [rows] int64, sorted positions. Returns [batch, heads, rows, head_dim].
    """
    form = _form(impl, query)
    attended: Tensor = form.attend_rows(query, keys, values, rows, attention)
    return attended


def attention_received(
    query: Tensor, keys: Tensor, rows: Tensor, attention: Attention, impl: Implementation = "auto"
) -> Tensor:
    """Attention that each key receives from ``rows``: [keys] fp32, mean over heads and rows."""
    form = _form(impl, query)
    received: Tensor = form.attention_received(query, keys, rows, attention)
    return received


def deviation(fresh: Tensor, stored: Tensor, rows: Tensor, impl: Implementation = "auto") -> Tensor:
    """Squared distance of each row, over heads and dimensions, between fresh and stored: [rows] fp32.

    fresh: [kv_heads, rows, head_dim]. stored: a canvas' keys or values, [kv_heads, capacity, head_dim].
    """
    form = _form(impl, fresh)
    distance: Tensor = form.deviation(fresh, stored, rows)
    return distance


def rotate_(keys: Tensor, cos: Tensor, sin: Tensor, rotation: Rotation) -> None:
    """Rotate keys [..., tokens, head_dim] in place by [tokens, pairs] angles (fp32 inside)."""
    reference.rotate_(keys, cos, sin, rotation)


def _form(impl: Implementation, tensor: Tensor) -> ModuleType:
    chosen = resolve(impl, tensor.device)
    if chosen == "triton":
        from ragblend.kernels import triton  # imports Triton, which CPU users do not have

        return triton
    return fused if chosen == "torch" else reference
