"""The fast operations against their fp32 oracles, over ragged cases."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragblend.kernels import fused, ops, reference
from ragblend.kernels.layout import Attention
from tests.kernels.cases import CASES, CODECS, ROTATIONS, inputs, placed

SHAPES = [(4, 4, 16), (4, 2, 96), (8, 1, 80), (6, 3, 128)]


def check_attention(rows, keys, shape, dtype, attention, tolerance):
    query, key, value = inputs(rows, keys, *shape, dtype)
    positions = torch.tensor(rows)
    fast = ops.attend_rows(query, key, value, positions, attention)
    oracle = ops.attend_rows(query, key, value, positions, attention, impl="reference")
    assert fast.dtype == dtype
    torch.testing.assert_close(fast.float(), oracle.float(), atol=tolerance, rtol=tolerance)
    received = ops.attention_received(query, key, positions, attention)
    expected = ops.attention_received(query, key, positions, attention, impl="reference")
    torch.testing.assert_close(received, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 3e-2)])
def test_attention_of_scattered_rows_equals_the_oracle(case, shape, dtype, tolerance):
    rows, keys = CASES[case]
    check_attention(rows, keys, shape, dtype, Attention(scaling=shape[2] ** -0.5), tolerance)


@pytest.mark.parametrize("window", [None, 900])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 3e-2)])
def test_one_row_over_many_keys_equals_the_oracle(window, dtype, tolerance):
    shape, keys = (12, 4, 96), 1100
    assert shape[1] * 900 * shape[2] > fused._MANY_NUMBERS, "this is the way of long contexts"
    check_attention([keys - 1], keys, shape, dtype, Attention(scaling=shape[2] ** -0.5, window=window), tolerance)


def test_one_row_of_several_prompts_equals_each_alone():
    prompts = [inputs([1099], 1100, 12, 4, 96, torch.float32, seed) for seed in range(3)]
    together = (torch.cat(tensors) for tensors in zip(*prompts, strict=True))
    rows, attention = torch.tensor([1099]), Attention(scaling=0.1)
    alone = torch.cat([ops.attend_rows(*prompt, rows, attention) for prompt in prompts])
    torch.testing.assert_close(ops.attend_rows(*together, rows, attention), alone, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("window", [1, 7, 64, 1000])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.bfloat16, 3e-2)])
def test_sliding_windows_equal_the_oracle(case, window, dtype, tolerance):
    rows, keys = CASES[case]
    check_attention(rows, keys, SHAPES[1], dtype, Attention(scaling=0.1, window=window), tolerance)


@pytest.mark.parametrize("case", CASES)
def test_softcap_and_sinks_equal_the_oracle(case):
    rows, keys = CASES[case]
    attention = Attention(scaling=0.3, window=50, softcap=4.0, sinks=torch.randn(4))
    check_attention(rows, keys, SHAPES[0], torch.float32, attention, 2e-5)


def test_a_row_never_sees_a_later_key():
    """CacheBlend's reference code masks bottom-right; here later keys may hold anything."""
    query, key, value = inputs([3, 10], 20, 2, 2, 16, torch.float32)
    rows, attention = torch.tensor([3, 10]), Attention(scaling=0.25)
    before = ops.attend_rows(query, key, value, rows, attention)
    key[:, :, 11:], value[:, :, 11:] = float("nan"), float("nan")
    torch.testing.assert_close(ops.attend_rows(query, key, value, rows, attention), before)


def test_the_oracle_equals_attention_written_out():
    query, key, value = inputs([1, 4], 6, 2, 1, 8, torch.float32)
    attention = Attention(scaling=0.5, sinks=torch.tensor([0.3, -1.0]))
    ours = reference.attend_rows(query, key, value, torch.tensor([1, 4]), attention)
    for head in range(2):
        for index, row in enumerate((1, 4)):
            exponents = (query[0, head, index] @ key[0, 0, : row + 1].T * 0.5).exp()
            weights = exponents / (exponents.sum() + attention.sinks[head].exp())
            torch.testing.assert_close(ours[0, head, index], weights @ value[0, 0, : row + 1])


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    keys=st.integers(1, 200),
    groups=st.integers(1, 4),
    head_dim=st.sampled_from([8, 24, 80]),
    window=st.none() | st.integers(1, 250),
)
def test_any_rows_equal_the_oracle(data, keys, groups, head_dim, window):
    rows = sorted(data.draw(st.sets(st.integers(0, keys - 1), min_size=1)))
    attention = Attention(scaling=head_dim**-0.5, window=window)
    check_attention(rows, keys, (2 * groups, 2, head_dim), torch.float32, attention, 2e-5)
    check_attention(rows, keys, (2 * groups, 2, head_dim), torch.bfloat16, attention, 4e-2)


@pytest.mark.parametrize("rotation", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_rotation_equals_multiplying_complex_numbers(rotation, dtype):
    angles = torch.rand(5, 4) * 6
    keys = torch.randn(2, 5, 10).to(dtype)
    turned = keys.clone()
    ops.rotate_(turned, angles.cos(), angles.sin(), rotation)
    pairs = (keys[..., 0:8:2], keys[..., 1:8:2]) if rotation == "interleaved" else (keys[..., :4], keys[..., 4:8])
    complex_keys = torch.complex(*(pair.float() for pair in pairs)) * torch.polar(torch.ones_like(angles), angles)
    parts = (complex_keys.real.to(dtype), complex_keys.imag.to(dtype))
    ours = (
        (turned[..., 0:8:2], turned[..., 1:8:2]) if rotation == "interleaved" else (turned[..., :4], turned[..., 4:8])
    )
    for part, our in zip(parts, ours, strict=True):
        torch.testing.assert_close(our, part)
    assert torch.equal(turned[..., 8:], keys[..., 8:])


def test_deviation_is_the_squared_distance_per_row():
    fresh, stored, rows = torch.randn(2, 3, 4), torch.randn(2, 9, 4), torch.tensor([0, 5, 8])
    expected = [float(((fresh[:, index] - stored[:, row]) ** 2).sum()) for index, row in enumerate(rows)]
    torch.testing.assert_close(ops.deviation(fresh, stored, rows), torch.tensor(expected))


@pytest.mark.parametrize(("rotation", "pairs"), ROTATIONS)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_chunks_are_placed_as_by_the_oracle(dtype, codec, rotation, pairs):
    """Side by side, with a gap, and in any order; what is between them is left alone."""
    canvases = [placed(impl, dtype, codec, rotation, pairs) for impl in ("torch", "reference")]
    for ours, oracle in zip(*canvases, strict=True):
        torch.testing.assert_close(ours, oracle, equal_nan=True)


def test_raw_chunks_are_placed_without_rounding():
    keys, values = placed("torch", torch.bfloat16, "raw", "none", 0)
    chunk = torch.arange(keys.shape[1])[keys[0, :, 0].isfinite()]
    assert chunk.numel() == 5 + 70 + 33
    assert values[:, chunk].isfinite().all()


def test_rows_are_written_where_they_belong():
    keys, values = torch.zeros(2, 3, 9, 4), torch.zeros(2, 3, 9, 4)
    fresh_keys, fresh_values = torch.randn(2, 2, 3, 4).transpose(1, 2), torch.randn(2, 3, 2, 4)
    ops.write_rows(fresh_keys, fresh_values, torch.tensor([1, 8]), keys, values)
    torch.testing.assert_close(keys[:, :, [1, 8]], fresh_keys)
    torch.testing.assert_close(values[:, :, [1, 8]], fresh_values)
    others = [0, *range(2, 8)]
    assert not keys[:, :, others].any()
    assert not values[:, :, others].any()
