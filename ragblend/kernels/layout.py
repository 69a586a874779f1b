"""What a kernel needs to know about a layer besides its tensors, and how stored KV is laid out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

# How a layer pairs the dimensions that RoPE turns together: (i, i + pairs), (2i, 2i + 1), or not at all.
Rotation = Literal["none", "half", "interleaved"]

# How chunk KV is kept: as the model computed it, or in fewer bits.
Codec = Literal["raw", "int8", "fp8", "int4"]

# int4 shares a scale and a lowest value among this many tokens of a key channel, or channels of a value.
INT4_GROUP = 64


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


@dataclass(frozen=True, slots=True)
class LayerKV:
    """One layer of one chunk: canonical keys and values, and what they are multiplied with if they are compact.

    Keys are scaled per channel, whose ranges differ much and change little from token to token (before
    rotation, which mixes channels); values per token (Liu et al., "KIVI", arXiv 2402.02750).

    ========  ==============================================  =======================================
    codec     keys, values                                    scales, float16
    ========  ==============================================  =======================================
    ``raw``   [kv_heads, tokens, head_dim]                    none
    ``int8``  int8 of that shape                              keys [kv_heads, head_dim],
                                                              values [kv_heads, tokens]
    ``fp8``   float8_e4m3fn of that shape                     as int8
    ``int4``  uint8 [kv_heads, tokens, head_dim / 2]: the     keys [2, kv_heads, token groups, head_dim],
              low half of a byte is dimension i, the high     values [2, kv_heads, tokens, channel groups]:
              one i + head_dim / 2                            step and lowest value of each group
    ========  ==============================================  =======================================

    Groups are of ``INT4_GROUP``; the last may be smaller. Compact tensors are contiguous.
    """

    keys: Tensor
    values: Tensor
    codec: Codec = "raw"
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @property
    def kv_heads(self) -> int:
        return int(self.keys.shape[0])

    @property
    def tokens(self) -> int:
        return int(self.keys.shape[1])

    @property
    def head_dim(self) -> int:
        return int(self.keys.shape[2]) * (2 if self.codec == "int4" else 1)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Keys, values and, if they are compact, the scales of keys and of values."""
        tensors = (self.keys, self.values, self.key_scales, self.value_scales)
        return tuple(tensor for tensor in tensors if tensor is not None)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def map(self, change: Callable[[Tensor], Tensor]) -> LayerKV:
        """The layer with each of its tensors changed."""
        keys, values, *scales = map(change, self.tensors)
        return LayerKV(keys, values, self.codec, *scales)
