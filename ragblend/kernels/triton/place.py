"""Placing stored chunks: dequantise, rotate in fp32, write to the canvas; one launch for all chunks of a layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ragblend.errors import ConfigError
from ragblend.kernels.layout import INT4_GROUP, LayerKV, Rotation
from ragblend.kernels.quantise import scales_of
from ragblend.kernels.triton.target import launch, options

_BLOCK_TOKENS = 16
_COLUMNS = 6  # of the table that describes the chunks, see _describe
_ALIGNED_BYTES = 16  # of the widest load


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
    """See ``reference.place_chunks``. One launch for each codec that occurs, all of them usually the same."""
    for codec in dict.fromkeys(chunk.codec for chunk in chunks):
        of_codec = [(chunk, start) for chunk, start in zip(chunks, starts, strict=True) if chunk.codec == codec]
        _place(of_codec, keys, values, cos, sin, first, rotation)


def _place(
    placed: Sequence[tuple[LayerKV, int]],
    keys: Tensor,
    values: Tensor,
    cos: Tensor,
    sin: Tensor,
    first: int,
    rotation: Rotation,
) -> None:
    kv_heads, capacity, head_dim = keys.shape
    pairs = 0 if rotation == "none" else cos.shape[1]
    rest = head_dim - 2 * pairs
    # Two heads a program share the angles that it loads.
    heads = 2 if kv_heads % 2 == 0 else 1
    rows = [_describe(chunk, start, keys.dtype, keys.device) for chunk, start in placed]
    aligned = all(pointer % _ALIGNED_BYTES == 0 for row in rows for pointer in row[:2])
    table = torch.tensor(rows, dtype=torch.int64).to(keys.device, non_blocking=True)
    longest = max(chunk.tokens for chunk, _ in placed)
    launch(
        place_kernel,
        (triton.cdiv(longest, _BLOCK_TOKENS), len(placed), kv_heads // heads),
        table,
        keys,
        values,
        cos if pairs else keys,
        sin if pairs else keys,
        first,
        capacity,
        KV_HEADS=kv_heads,
        HEAD_DIM=head_dim,
        PADDED_DIM=triton.next_power_of_2(head_dim),
        PAIRS=pairs,
        PADDED_PAIRS=triton.next_power_of_2(max(pairs, 1)),
        REST=rest,
        PADDED_REST=triton.next_power_of_2(max(rest, 1)),
        INTERLEAVED=rotation == "interleaved",
        CODEC=placed[0][0].codec,
        GROUP=INT4_GROUP,
        HEADS=heads,
        BLOCK_TOKENS=_BLOCK_TOKENS,
        ALIGNED=aligned,
        **options(warps=4, stages=1),
    )


def _describe(chunk: LayerKV, start: int, dtype: torch.dtype, device: torch.device) -> tuple[int, ...]:
    """A chunk as a row of the kernel's table: four addresses, tokens, first position."""
    tensors = [chunk.keys, chunk.values]
    if chunk.codec == "raw":
        if chunk.keys.dtype != dtype or chunk.values.dtype != dtype:
            raise ConfigError(f"chunks of {chunk.keys.dtype} cannot be placed as they are on a canvas of {dtype}")
    else:
        tensors += scales_of(chunk)
    for tensor in tensors:
        if tensor.device != device or not tensor.is_contiguous():
            raise ConfigError(f"chunks must be contiguous and on {device}, got one on {tensor.device}")
    addresses = [tensor.data_ptr() for tensor in tensors]
    return (*addresses, *[0] * (4 - len(addresses)), chunk.tokens, start)


@triton.jit
def _load_stored(payload, token, dim, mask, HEAD_DIM: tl.constexpr, CODEC: tl.constexpr):
    """Numbers of tokens by dimensions, fp32, before scales. ``token`` and ``dim`` broadcast to ``mask``."""
    if CODEC == "int4":
        byte = tl.load(payload + token * (HEAD_DIM // 2) + dim % (HEAD_DIM // 2), mask=mask, other=0)
        number = ((byte.to(tl.int32) >> (dim // (HEAD_DIM // 2) * 4)) & 15).to(tl.float32)
    elif CODEC == "fp8":
        # e4m3's bits are those of a float16 with a shorter mantissa and an exponent smaller by 8. No kind
        # of GPU needs to know the type itself, and subnormal numbers come out right.
        bits = tl.load(payload + token * HEAD_DIM + dim, mask=mask, other=0).to(tl.int16)
        halves = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        number = halves.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    elif CODEC == "int8":
        byte = tl.load(payload + token * HEAD_DIM + dim, mask=mask, other=0)
        number = byte.to(tl.int8, bitcast=True).to(tl.float32)
    else:
        number = tl.load(payload + token * HEAD_DIM + dim, mask=mask, other=0).to(tl.float32)
    return number


@triton.jit
def _load_keys(
    payload, scales, token, dim, mask, tokens, kv_head, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    CODEC: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    number = _load_stored(payload, token, dim, mask, HEAD_DIM, CODEC)
    if CODEC == "int4":
        groups = tl.cdiv(tokens, GROUP)
        at = (kv_head * groups + token // GROUP) * HEAD_DIM + dim
        step = tl.load(scales + at, mask=mask, other=0.0).to(tl.float32)
        lowest = tl.load(scales + KV_HEADS * groups * HEAD_DIM + at, mask=mask, other=0.0).to(tl.float32)
        number = number * step + lowest
    elif CODEC != "raw":
        number = number * tl.load(scales + kv_head * HEAD_DIM + dim, mask=dim < HEAD_DIM, other=0.0).to(tl.float32)
    return number


@triton.jit
def _load_values(
    payload, scales, token, dim, mask, tokens, kv_head, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    CODEC: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    number = _load_stored(payload, token, dim, mask, HEAD_DIM, CODEC)
    if CODEC == "int4":
        GROUPS: tl.constexpr = (HEAD_DIM + GROUP - 1) // GROUP
        at = (kv_head * tokens + token) * GROUPS + dim // GROUP
        step = tl.load(scales + at, mask=mask, other=0.0).to(tl.float32)
        lowest = tl.load(scales + KV_HEADS * tokens * GROUPS + at, mask=mask, other=0.0).to(tl.float32)
        number = number * step + lowest
    elif CODEC != "raw":
        number = number * tl.load(scales + kv_head * tokens + token, mask=token < tokens, other=0.0).to(tl.float32)
    return number


@triton.jit(do_not_specialize=["first", "capacity"])
def place_kernel(
    table,
    canvas_keys,
    canvas_values,
    cos,
    sin,
    first,
    capacity,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    PADDED_PAIRS: tl.constexpr,
    REST: tl.constexpr,
    PADDED_REST: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    CODEC: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """A block of tokens of one chunk, in HEADS kv heads. All sums of addresses are int64."""
    row = table + tl.program_id(1).to(tl.int64) * 6
    tokens = tl.load(row + 4)
    start = tl.load(row + 5)
    token = tl.program_id(0).to(tl.int64) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)[:, None]
    inside = token < tokens
    payload = canvas_keys.dtype if CODEC == "raw" else tl.pointer_type(tl.uint8)
    stored_keys = tl.load(row).to(payload)
    stored_values = tl.load(row + 1).to(payload)
    if ALIGNED:
        # Known to the compiler, an alignment of 16 bytes lets it use the widest loads.
        stored_keys = tl.multiple_of(stored_keys, 16)
        stored_values = tl.multiple_of(stored_values, 16)
    key_scales = tl.load(row + 2).to(tl.pointer_type(tl.float16))
    value_scales = tl.load(row + 3).to(tl.pointer_type(tl.float16))
    PAYLOAD_DIM: tl.constexpr = HEAD_DIM // 2 if CODEC == "int4" else HEAD_DIM

    if PAIRS > 0:
        pair = tl.arange(0, PADDED_PAIRS)[None, :]
        turned = inside & (pair < PAIRS)
        angle = (start - first + token) * PAIRS + pair
        cosine = tl.load(cos + angle, mask=turned, other=0.0)
        sine = tl.load(sin + angle, mask=turned, other=0.0)
    for index in tl.static_range(HEADS):
        kv_head = tl.program_id(2).to(tl.int64) * HEADS + index
        source = kv_head * tokens * PAYLOAD_DIM
        target = (kv_head * capacity + start + token) * HEAD_DIM
        if PAIRS > 0:
            if INTERLEAVED:
                dim = tl.arange(0, 2 * PADDED_PAIRS)[None, :]
                mask = inside & (dim < 2 * PAIRS)
                both = _load_keys(
                    stored_keys + source, key_scales, token, dim, mask, tokens, kv_head, KV_HEADS, HEAD_DIM, CODEC,
                    GROUP,
                )  # fmt: skip
                even, odd = tl.split(tl.reshape(both, [BLOCK_TOKENS, PADDED_PAIRS, 2]))
                both = tl.join(even * cosine - odd * sine, odd * cosine + even * sine)
                both = tl.reshape(both, [BLOCK_TOKENS, 2 * PADDED_PAIRS])
                tl.store(canvas_keys + target + dim, both.to(canvas_keys.dtype.element_ty), mask=mask)
            else:
                left = _load_keys(
                    stored_keys + source, key_scales, token, pair, turned, tokens, kv_head, KV_HEADS, HEAD_DIM, CODEC,
                    GROUP,
                )  # fmt: skip
                right = _load_keys(
                    stored_keys + source, key_scales, token, PAIRS + pair, turned, tokens, kv_head, KV_HEADS, HEAD_DIM,
                    CODEC, GROUP,
                )  # fmt: skip
                first_half = (left * cosine - right * sine).to(canvas_keys.dtype.element_ty)
                second_half = (right * cosine + left * sine).to(canvas_keys.dtype.element_ty)
                tl.store(canvas_keys + target + pair, first_half, mask=turned)
                tl.store(canvas_keys + target + PAIRS + pair, second_half, mask=turned)
        if REST > 0:
            dim = tl.arange(0, PADDED_REST)[None, :]
            mask = inside & (dim < REST)
            kept = _load_keys(
                stored_keys + source, key_scales, token, 2 * PAIRS + dim, mask, tokens, kv_head, KV_HEADS, HEAD_DIM,
                CODEC, GROUP,
            )  # fmt: skip
            tl.store(canvas_keys + target + 2 * PAIRS + dim, kept.to(canvas_keys.dtype.element_ty), mask=mask)
        dim = tl.arange(0, PADDED_DIM)[None, :]
        mask = inside & (dim < HEAD_DIM)
        value = _load_values(
            stored_values + source, value_scales, token, dim, mask, tokens, kv_head, KV_HEADS, HEAD_DIM, CODEC, GROUP
        )
        tl.store(canvas_values + target + dim, value.to(canvas_values.dtype.element_ty), mask=mask)
