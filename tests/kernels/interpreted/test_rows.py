"""The Triton forms that move rows, against their oracles: placing, writing, and the distance of rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragblend.errors import ConfigError
from ragblend.kernels import ops, reference
from ragblend.kernels.layout import LayerKV
from ragblend.kernels.quantise import quantise
from tests.kernels.cases import CODECS, ROTATIONS, placed

DTYPES = [torch.float32, torch.float16]


def assert_same(ours, oracle):
    """Equal up to one rounding; NaN, that is what nothing was written to, in the same places."""
    torch.testing.assert_close(ours, oracle, equal_nan=True)


@pytest.mark.parametrize(("rotation", "pairs"), ROTATIONS)
@pytest.mark.parametrize("codec", CODECS)
def test_chunks_are_placed(codec, rotation, pairs):
    arguments = (torch.float32, codec, rotation, pairs)
    for ours, oracle in zip(placed("triton", *arguments), placed("reference", *arguments), strict=True):
        assert_same(ours, oracle)


@pytest.mark.parametrize(
    ("codec", "head_dim", "pairs"), [("int8", 80, 40), ("int4", 96, 48), ("raw", 128, 64), ("fp8", 256, 32)]
)
def test_other_head_dimensions_in_fp16(codec, head_dim, pairs):
    arguments = (torch.float16, codec, "half", pairs, head_dim)
    for ours, oracle in zip(placed("triton", *arguments), placed("reference", *arguments), strict=True):
        assert_same(ours, oracle)


def test_one_chunk_may_be_placed_several_times_and_chunks_of_several_codecs_together():
    keys, values = torch.randn(3, 20, 8), torch.randn(3, 20, 8)
    chunks = [quantise(keys, values, codec) for codec in ("raw", "int8", "raw", "int4", "raw")]
    angles, starts = torch.rand(120, 4), [0, 20, 45, 65, 100]
    canvases = []
    for impl in ("triton", "reference"):
        canvas = [torch.full((3, 125, 8), float("nan")) for _ in range(2)]
        ops.place_chunks(chunks, starts, *canvas, angles.cos(), angles.sin(), 0, "half", impl=impl)
        canvases.append(torch.stack(canvas))
    assert_same(*canvases)


def test_every_number_of_fp8_is_read():
    """All 254 finite bit patterns, subnormal ones included."""
    bits = torch.arange(256, dtype=torch.uint8)
    numbers = bits[(bits & 0x7F) != 0x7F].view(torch.float8_e4m3fn)[None, None].repeat(2, 1, 1)
    ones = torch.ones(2, 254, dtype=torch.float16), torch.ones(2, 1, dtype=torch.float16)
    chunk = LayerKV(numbers, numbers, "fp8", *ones)
    keys, values = torch.empty(2, 1, 254), torch.empty(2, 1, 254)
    ops.place_chunks([chunk], [0], keys, values, torch.empty(0), torch.empty(0), 0, "none", impl="triton")
    assert torch.equal(keys, numbers.float())
    assert torch.equal(values, numbers.float())


def test_chunks_that_a_kernel_cannot_read_are_refused():
    canvas, nothing = torch.ones(1, 9, 8), torch.empty(0)
    unfit = {"float16 cannot be placed": torch.ones(1, 4, 8).half(), "contiguous": torch.ones(1, 8, 4).transpose(1, 2)}
    for reason, tensor in unfit.items():
        chunk = LayerKV(tensor, tensor)
        with pytest.raises(ConfigError, match=reason):
            ops.place_chunks([chunk], [0], canvas, canvas, nothing, nothing, 0, "none", impl="triton")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "head_dim"), [([0], 12), ([110], 80), ([0, 1, 63, 109, 110], 80), (list(range(0, 111, 2)), 96)]
)
def test_rows_are_written_and_compared(rows, head_dim, dtype):
    positions = torch.tensor(rows)
    fresh_keys = torch.randn(2, len(rows), 3, head_dim).to(dtype).transpose(1, 2)
    fresh_values = torch.randn(2, 3, len(rows), head_dim).to(dtype)
    canvases = []
    for impl in ("triton", "reference"):
        keys, values = (torch.full((2, 3, 120, head_dim), float("nan"), dtype=dtype) for _ in range(2))
        ops.write_rows(fresh_keys, fresh_values, positions, keys, values, impl=impl)
        canvases.append(torch.stack([keys, values]))
    assert_same(*canvases)

    stored = torch.randn(3, 120, head_dim).to(dtype)
    ours = ops.deviation(fresh_keys[0], stored, positions, impl="triton")
    torch.testing.assert_close(ours, reference.deviation(fresh_keys[0], stored, positions), atol=1e-4, rtol=1e-5)


@settings(max_examples=8, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=4),
    gaps=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    kv_heads=st.integers(1, 3),
    codec=st.sampled_from(CODECS),
    rotation=st.sampled_from(["half", "interleaved", "none"]),
    data=st.data(),
)
def test_any_chunks(lengths, gaps, kv_heads, codec, rotation, data):
    head_dim = data.draw(st.sampled_from([8, 20, 64]))
    pairs = data.draw(st.integers(1, head_dim // 2))
    starts, position = [], gaps[0]
    for length, gap in zip(lengths, gaps, strict=False):
        starts.append(position)
        position += length + gap
    chunks = [
        quantise(torch.randn(kv_heads, length, head_dim), torch.randn(kv_heads, length, head_dim), codec)
        for length in lengths
    ]
    angles = torch.rand(position, pairs) * 6
    canvases = []
    for impl in ("triton", "reference"):
        canvas = [torch.full((kv_heads, position, head_dim), float("nan")) for _ in range(2)]
        ops.place_chunks(chunks, starts, *canvas, angles.cos(), angles.sin(), 0, rotation, impl=impl)
        canvases.append(torch.stack(canvas))
    assert_same(*canvases)
