"""Chunk KV in fewer bits: the codecs' arithmetic in plain torch. Kernels must equal ``dequantise``.

Everything is quantised against the scales as they are stored, in float16, so their rounding costs no accuracy.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ragblend.errors import ConfigError
from ragblend.kernels.layout import INT4_GROUP, Codec, LayerKV

_LARGEST: dict[Codec, float] = {"int8": 127.0, "fp8": 448.0}
_INT4_STEPS = 15.0
# Between the exponents of e4m3 and float16 lie eight powers of two.
_FP8_FACTOR = 256.0
_NOT_BIT_14 = ~(1 << 14)


def quantise(keys: Tensor, values: Tensor, codec: Codec) -> LayerKV:
    """Canonical keys and values, each [kv_heads, tokens, head_dim], in the layout of ``codec``.

    Raises ConfigError for numbers that the scales cannot hold (above 65,504 for int4) and, with int4, an
    odd head_dim.
    """
    if codec == "raw":
        return LayerKV(keys.contiguous(), values.contiguous())
    if codec == "int4":
        return _quantise_int4(keys.float(), values.float())
    key_scales = _scales(keys.float().abs().amax(dim=1), codec)
    value_scales = _scales(values.float().abs().amax(dim=2), codec)
    return LayerKV(
        _round(keys.float(), key_scales[:, None, :], codec),
        _round(values.float(), value_scales[:, :, None], codec),
        codec,
        key_scales,
        value_scales,
    )


def dequantise(stored: LayerKV) -> tuple[Tensor, Tensor]:
    """Keys and values [kv_heads, tokens, head_dim] of any codec: raw as they are, else in fp32."""
    if stored.codec == "raw":
        return stored.keys, stored.values
    key_scales, value_scales = (scales.float() for scales in scales_of(stored))
    if stored.codec == "int4":
        keys, values = _unpack(stored.keys), _unpack(stored.values)
        _scale_groups(keys, key_scales, dim=1)
        _scale_groups(values, value_scales, dim=2)
        return keys, values
    keys, values = stored.keys, stored.values
    if stored.codec == "fp8":
        keys, values = _as_halves(keys), _as_halves(values)
        key_scales, value_scales = key_scales * _FP8_FACTOR, value_scales * _FP8_FACTOR
    return keys.float() * key_scales[:, None], values.float() * value_scales[..., None]


def rows_of(layer: LayerKV, rows: slice) -> LayerKV:
    """Some consecutive tokens of a layer. int4 cut inside its groups comes back as raw, in fp32."""
    if layer.codec == "int4":
        layer = LayerKV(*dequantise(layer))
    keys, values = layer.keys[:, rows], layer.values[:, rows]
    if layer.codec == "raw":
        return LayerKV(keys, values)
    key_scales, value_scales = scales_of(layer)
    return LayerKV(keys, values, layer.codec, key_scales, value_scales[:, rows]).map(Tensor.contiguous)


def scales_of(stored: LayerKV) -> tuple[Tensor, Tensor]:
    """The scales of keys and values. Raises ConfigError where they are missing."""
    if stored.key_scales is None or stored.value_scales is None:
        raise ConfigError(f"a layer stored as {stored.codec} needs the scales of its keys and values")
    return stored.key_scales, stored.value_scales


def _scales(largest: Tensor, codec: Codec) -> Tensor:
    return _as_float16(largest / _LARGEST[codec])


def _round(numbers: Tensor, scales: Tensor, codec: Codec) -> Tensor:
    """Numbers by scales, rounded. A scale of 0 stands for nothing but zeros."""
    limit = _LARGEST[codec]
    ratio = (numbers / scales.float()).nan_to_num_(0.0).clamp_(-limit, limit)
    return ratio.round_().to(torch.int8) if codec == "int8" else ratio.to(torch.float8_e4m3fn)


def _quantise_int4(keys: Tensor, values: Tensor) -> LayerKV:
    tokens, head_dim = keys.shape[1:]
    if head_dim % 2:
        raise ConfigError(f"int4 stores two dimensions in a byte, but the head dimension is {head_dim}: use int8")
    key_scales = _group_scales(keys.transpose(1, 2)).transpose(2, 3).contiguous()
    value_scales = _group_scales(values)
    packed = []
    for numbers, step, lowest in (
        (keys, _per_token(key_scales[0], tokens), _per_token(key_scales[1], tokens)),
        (values, _per_channel(value_scales[0], head_dim), _per_channel(value_scales[1], head_dim)),
    ):
        steps = ((numbers - lowest) / step).nan_to_num_(0.0).clamp_(0.0, _INT4_STEPS).round_().to(torch.uint8)
        packed.append(steps[..., : head_dim // 2] | steps[..., head_dim // 2 :] << 4)
    return LayerKV(packed[0], packed[1], "int4", key_scales, value_scales)


def _group_scales(numbers: Tensor) -> Tensor:
    """Step and lowest value [2, ..., groups] fp16 of each group of the last dimension."""
    missing = -numbers.shape[-1] % INT4_GROUP
    padded = pad(numbers, (0, missing), mode="replicate") if missing else numbers
    groups = padded.reshape(*padded.shape[:-1], -1, INT4_GROUP)
    lowest, highest = _as_float16(groups.amin(dim=-1)), groups.amax(dim=-1)
    return torch.stack([_as_float16((highest - lowest.float()) / _INT4_STEPS), lowest])


def _per_token(scales: Tensor, tokens: int) -> Tensor:
    """[kv_heads, token groups, head_dim] for every token."""
    return scales.float().repeat_interleave(INT4_GROUP, dim=1)[:, :tokens]


def _per_channel(scales: Tensor, head_dim: int) -> Tensor:
    """[kv_heads, tokens, channel groups] for every channel."""
    return scales.float().repeat_interleave(INT4_GROUP, dim=2)[:, :, :head_dim]


def _unpack(packed: Tensor) -> Tensor:
    half = packed.shape[-1]
    numbers = packed.new_empty((*packed.shape[:-1], 2 * half), dtype=torch.float32)
    numbers[..., :half] = packed & 15
    numbers[..., half:] = packed >> 4
    return numbers


def _scale_groups(numbers: Tensor, scales: Tensor, dim: int) -> None:
    """Turn steps into numbers, in place; groups go along ``dim``, and the last may be smaller."""
    groups, rest = divmod(numbers.shape[dim], INT4_GROUP)
    whole = torch.unflatten(numbers.narrow(dim, 0, groups * INT4_GROUP), dim, (groups, INT4_GROUP))
    parts = [(whole, scales.narrow(dim + 1, 0, groups).unsqueeze(dim + 2))]
    if rest:
        last = numbers.narrow(dim, groups * INT4_GROUP, rest)
        parts.append((last, scales.narrow(dim + 1, groups, 1)))
    for part, (step, lowest) in parts:
        part.mul_(step).add_(lowest)


def _as_halves(numbers: Tensor) -> Tensor:
    """e4m3 as float16 over ``_FP8_FACTOR``, by moving its bits: ten times as fast as torch's conversion on a CPU."""
    return ((numbers.view(torch.int8).to(torch.int16) << 7) & _NOT_BIT_14).view(torch.float16)


def _as_float16(numbers: Tensor) -> Tensor:
    halves = numbers.half()
    if not bool(halves.isfinite().all()):
        raise ConfigError("keys or values above 65,504 cannot be stored in fewer bits: use the codec raw")
    return halves
