"""The only entry to the kernels. ``impl`` is ``auto`` (fused where it exists) or ``reference``."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ragblend.kernels import fused, reference
from ragblend.kernels.layout import Attention, Rotation

Implementation = Literal["auto", "reference"]


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
    attend = reference.attend_rows if impl == "reference" else fused.attend_rows
    return attend(query, keys, values, rows, attention)


def attention_received(
    query: Tensor, keys: Tensor, rows: Tensor, attention: Attention, impl: Implementation = "auto"
) -> Tensor:
    """Attention that each key receives from ``rows``: [keys] fp32, mean over heads and rows."""
    receive = reference.attention_received if impl == "reference" else fused.attention_received
    return receive(query, keys, rows, attention)


def rotate_(keys: Tensor, cos: Tensor, sin: Tensor, rotation: Rotation) -> None:
    """Rotate keys [..., tokens, head_dim] in place by [tokens, pairs] angles (fp32 inside)."""
    reference.rotate_(keys, cos, sin, rotation)


def deviation(fresh: Tensor, stored: Tensor) -> Tensor:
    """Squared distance per token between two [kv_heads, tokens, head_dim]: [tokens] fp32."""
    return reference.deviation(fresh, stored)
