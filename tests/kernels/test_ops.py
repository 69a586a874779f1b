"""The fast operations against their fp32 oracles, over ragged cases."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragblend.kernels import ops, reference
from ragblend.kernels.layout import Attention

# name -> (rows, keys): rows at both ends, one row, one key, all rows, odd sizes around a block.
CASES = {
    "one row, one key": ([0], 1),
    "one row in the middle": ([40], 111),
    "last row": ([110], 111),
    "both ends": ([0, 1, 109, 110], 111),
    "all rows": (list(range(111)), 111),
    "all but the first": (list(range(1, 111)), 111),
    "scattered": (list(range(0, 333, 2)), 333),
    "more than a block": (list(range(5, 300)), 333),
}
SHAPES = [(4, 4, 16), (4, 2, 96), (8, 1, 80), (6, 3, 128)]


def inputs(rows, keys, heads, kv_heads, head_dim, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(1, heads, len(rows), head_dim, generator=generator)
    others = [torch.randn(1, kv_heads, keys + 9, head_dim, generator=generator)[:, :, :keys] for _ in range(2)]
    return [tensor.to(dtype) for tensor in (query, *others)]


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


def test_deviation_is_the_squared_distance_per_token():
    fresh, stored = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    expected = [float(((fresh[:, token] - stored[:, token]) ** 2).sum()) for token in range(3)]
    torch.testing.assert_close(ops.deviation(fresh, stored), torch.tensor(expected))
