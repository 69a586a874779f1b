"""What chunk KV loses in fewer bits, and what it costs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragblend.errors import ConfigError
from ragblend.kernels.layout import INT4_GROUP, LayerKV
from ragblend.kernels.quantise import dequantise, quantise, rows_of
from tests.kernels.cases import CODECS

# Largest error in units of what shares a scale: a rounding step, e4m3's spacing, a sixteenth.
LARGEST_ERROR = {"raw": 0.0, "int8": 0.51 / 127, "fp8": 1 / 16, "int4": 0.51 / 15}
# Bytes of a chunk of 512 tokens with 128 dimensions, by those of bf16.
LARGEST_SHARE = {"raw": 1.0, "int8": 0.51, "fp8": 0.51, "int4": 0.3}


def uneven(tokens: int, head_dim: int, kv_heads: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys whose channels differ in range and offset, values whose tokens do."""
    generator = torch.Generator().manual_seed(tokens)
    keys = torch.randn(kv_heads, tokens, head_dim, generator=generator)
    values = torch.randn(kv_heads, tokens, head_dim, generator=generator)
    channels = torch.logspace(-2, 2, head_dim)
    return keys * channels + channels.flip(0), values * torch.logspace(-3, 1, tokens)[:, None]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("tokens", "head_dim"), [(1, 8), (63, 64), (64, 80), (200, 96), (512, 128)])
def test_errors_stay_below_a_step_of_what_shares_the_scale(codec, tokens, head_dim):
    keys, values = uneven(tokens, head_dim)
    ours = dequantise(quantise(keys, values, codec))
    for exact, close, across in ((keys, ours[0], 1), (values, ours[1], 2)):
        largest = exact.abs().amax(dim=across, keepdim=True)
        if codec == "int4":
            largest = exact.amax(dim=across, keepdim=True) - exact.amin(dim=across, keepdim=True)
            largest += exact.abs().amax(dim=across, keepdim=True) * 2**-6  # the lowest value is rounded too
        assert ((exact - close).abs() <= largest * LARGEST_ERROR[codec] + 1e-6).all()


@pytest.mark.parametrize("codec", CODECS)
def test_bytes_by_those_of_bf16(codec):
    keys, values = (tensor.bfloat16() for tensor in uneven(512, 128))
    assert quantise(keys, values, codec).nbytes <= LARGEST_SHARE[codec] * (keys.nbytes + values.nbytes)


@pytest.mark.parametrize("codec", CODECS)
def test_zeros_and_constants_come_back(codec):
    """A group without any range has a step of zero."""
    keys, values = torch.full((1, 70, 16), 3.0), torch.zeros(1, 70, 16)
    ours = dequantise(quantise(keys, values, codec))
    torch.testing.assert_close(ours[0], keys, atol=0, rtol=1e-3)
    assert not ours[1].any()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3 * INT4_GROUP), st.sampled_from([2, 24, 64, 80]), st.sampled_from(CODECS))
def test_any_shape_comes_back(tokens, head_dim, codec):
    keys, values = uneven(tokens, head_dim)
    stored = quantise(keys, values, codec)
    assert (stored.kv_heads, stored.tokens, stored.head_dim) == keys.shape
    assert all(tensor.shape == keys.shape for tensor in dequantise(stored))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("rows", [slice(0, 64), slice(3, 70), slice(69, 70), slice(0, 200)])
def test_some_rows_are_those_of_the_whole(codec, rows):
    whole = quantise(*uneven(200, 24), codec)
    some = rows_of(whole, rows)
    assert (some.kv_heads, some.tokens, some.head_dim) == (2, rows.stop - rows.start, 24)
    for found, numbers in zip(dequantise(some), dequantise(whole), strict=True):
        assert torch.equal(found, numbers[:, rows])


def test_every_number_of_fp8_is_torchs():
    numbers = torch.arange(256, dtype=torch.uint8)
    numbers = numbers[(numbers & 0x7F) != 0x7F].view(torch.float8_e4m3fn).reshape(1, 1, -1)
    ones = torch.ones(1, numbers.shape[2], dtype=torch.float16), torch.ones(1, 1, dtype=torch.float16)
    keys, values = dequantise(LayerKV(numbers, numbers, "fp8", *ones))
    assert torch.equal(keys, numbers.float())
    assert torch.equal(values, numbers.float())


def test_int4_puts_both_halves_of_the_dimensions_into_a_byte():
    keys = torch.tensor([[[0.0, 1.0, 14.0, 15.0]] * 2])
    keys[0, 1] = torch.tensor([15.0, 16.0, 29.0, 30.0])  # each channel spans 15, so a step is 1
    assert quantise(keys, keys, "int4").keys.tolist() == [[[0, 0], [0xFF, 0xFF]]]


def test_what_scales_cannot_hold_is_refused():
    keys = torch.full((1, 2, 4), 1e9)
    for codec in ("int8", "fp8", "int4"):
        with pytest.raises(ConfigError, match="use the codec raw"):
            quantise(keys, keys, codec)
    with pytest.raises(ConfigError, match="head dimension is 5"):
        quantise(torch.ones(1, 2, 5), torch.ones(1, 2, 5), "int4")


def test_a_layer_without_its_scales_is_refused():
    with pytest.raises(ConfigError, match="needs the scales"):
        dequantise(LayerKV(torch.ones(1, 2, 4), torch.ones(1, 2, 4), "int8"))
