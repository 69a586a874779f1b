"""What a kernel needs to know about a layer besides its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

# How a layer pairs the dimensions that RoPE turns together: (i, i + pairs), (2i, 2i + 1), or not at all.
Rotation = Literal["none", "half", "interleaved"]


@dataclass(frozen=True, slots=True)
class Attention:
    """A layer's attention besides q, k and v.

    scaling: factor on q.k. window: how many keys a row sees, itself included; None for all.
    softcap: logits become ``softcap * tanh(logits / softcap)``. sinks: one extra logit a head, [heads].
    """

    scaling: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
