"""The attention function that transformers' layers call: ours, because rows are scattered.

It is registered under a name of its own, so that transformers builds no mask for it: the mask
follows from the rows' true positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from ragblend.kernels import ops
from ragblend.kernels.implementation import Implementation
from ragblend.kernels.layout import Attention
from ragblend.models.rows import RowRun

ATTENTION_NAME = "ragblend"


def register() -> None:
    """Make the attention function known to transformers (again is harmless)."""
    AttentionInterface.register(ATTENTION_NAME, attention_forward)


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    row_run: RowRun | None = None,
    kernels: Implementation = "auto",
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: [batch, heads, n, head_dim] in, [batch, n, heads, head_dim] out.

    Without a ``row_run`` the queries are the last n positions of the keys (prefill and decoding).
    """
    attention = Attention(
        scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window or None,
        softcap=softcap,
        sinks=s_aux,
    )
    if row_run is not None:
        rows = row_run.rows
        if row_run.on_attend is not None:
            row_run.on_attend(int(module.layer_idx), rows, query, key, attention)  # type: ignore[arg-type]
    else:
        rows = torch.arange(key.shape[2] - query.shape[2], key.shape[2], device=query.device)
    return ops.attend_rows(query, key, value, rows, attention, impl=kernels).transpose(1, 2), None
