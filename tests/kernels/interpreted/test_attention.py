"""The Triton forms of attention against their fp32 oracles."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragblend.errors import KernelUnavailableError
from ragblend.kernels import ops, reference, triton
from ragblend.kernels.layout import Attention
from ragblend.kernels.triton.target import Blocks
from tests.kernels.cases import CASES, inputs

TOLERANCES = [(torch.float32, 2e-5), (torch.float16, 4e-3)]
# (heads, kv_heads, head_dim): groups of 1 to 8, head dimensions that are no power of two, large ones.
SHAPES = [(2, 2, 16), (4, 2, 80), (3, 1, 96), (8, 1, 128), (5, 1, 64), (6, 1, 24), (7, 1, 32), (2, 1, 12), (1, 1, 256)]
SHAPE_OF_CASE = dict(zip(CASES, SHAPES, strict=True))


def check(case, shape, attention, dtype=torch.float32, tolerance=2e-5, **launch):
    rows, keys = CASES[case]
    query, key, value = inputs(rows, keys, *shape, dtype)
    check_tensors(query, key, value, torch.tensor(rows), attention, tolerance, **launch)


def check_tensors(query, key, value, rows, attention, tolerance, **launch):
    ours = triton.attend_rows(query, key, value, rows, attention, **launch)
    oracle = reference.attend_rows(query, key, value, rows, attention)
    assert (ours.dtype, ours.shape) == (query.dtype, oracle.shape)
    torch.testing.assert_close(ours.float(), oracle.float(), atol=tolerance, rtol=tolerance)
    received = triton.attention_received(query, key, rows, attention, **launch)
    expected = reference.attention_received(query, key, rows, attention)
    torch.testing.assert_close(received, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_scattered_rows(case, dtype, tolerance):
    shape = SHAPE_OF_CASE[case]
    check(case, shape, Attention(scaling=shape[2] ** -0.5), dtype, tolerance)


@pytest.mark.parametrize("window", [1, 7, 64])
@pytest.mark.parametrize("case", ["last row", "both ends", "63 rows"])
def test_sliding_windows(case, window):
    check(case, (4, 2, 16), Attention(scaling=0.1, window=window))


@pytest.mark.parametrize(("case", "splits"), [("both ends", 1), ("63 rows", 1), ("last row", 4)])
def test_softcap_and_sinks(case, splits):
    attention = Attention(scaling=0.3, window=50, softcap=4.0, sinks=torch.randn(4) * 3)
    check(case, (4, 1, 16), attention, splits=splits)
    check(case, (4, 1, 16), Attention(scaling=0.3, softcap=4.0), splits=splits)


@pytest.mark.parametrize(
    ("case", "splits"), [("one row, one key", 2), ("last row", 16), ("both ends", 2), ("scattered", 3)]
)
def test_splits_of_the_keys_are_put_together(case, splits):
    """More splits than blocks as well: some then see nothing."""
    check(case, (2, 1, 16), Attention(scaling=0.25), splits=splits)
    check(case, (2, 1, 16), Attention(scaling=0.25, window=40), splits=splits)


@pytest.mark.parametrize("blocks", [Blocks(128, 64, 8, 3), Blocks(16, 128, 4, 3), Blocks(64, 32, 4, 2)])
def test_the_tiles_of_gpus(blocks):
    check("63 rows", (2, 1, 16), Attention(scaling=0.25), torch.float16, 4e-3, blocks=blocks)
    check("both ends", (4, 1, 80), Attention(scaling=0.1, window=9), torch.float16, 4e-3, blocks=blocks)


def test_several_sequences_and_any_strides():
    """transformers hands out [batch, n, heads, head_dim] turned round, and slices of it."""
    query = torch.randn(2, 20, 4, 16).transpose(1, 2)[:, :, -7:]
    key, value = torch.randn(2, 2, 60, 16)[:, :, :50], torch.randn(2, 60, 2, 16).transpose(1, 2)[:, :, :50]
    rows = torch.tensor([0, 3, 4, 20, 30, 48, 49])
    check_tensors(query, key, value.contiguous(), rows, Attention(scaling=0.25), 2e-5)
    uneven = torch.randn(2, 4, 7, 17)[..., :16]  # no whole number of rows from head to head
    check_tensors(uneven, key, value.contiguous(), rows, Attention(scaling=0.25), 2e-5)


def test_a_row_never_sees_a_later_key():
    query, key, value = inputs([3, 10], 20, 2, 2, 16, torch.float32)
    rows, attention = torch.tensor([3, 10]), Attention(scaling=0.25)
    before = ops.attend_rows(query, key, value, rows, attention, impl="triton")
    key[:, :, 11:], value[:, :, 11:] = float("nan"), float("nan")
    assert torch.equal(ops.attend_rows(query, key, value, rows, attention, impl="triton"), before)


@pytest.mark.parametrize(("head_dim", "dtype"), [(520, torch.float32), (16, torch.float64)])
def test_what_has_no_tile_is_refused(head_dim, dtype):
    query, key, value = inputs([3], 5, 1, 1, head_dim, dtype)
    with pytest.raises(KernelUnavailableError, match="use kernels='torch'"):
        triton.attend_rows(query, key, value, torch.tensor([3]), Attention(scaling=1.0))


@settings(max_examples=8, deadline=None)
@given(
    data=st.data(),
    keys=st.integers(1, 80),
    groups=st.integers(1, 8),
    head_dim=st.sampled_from([8, 24, 80]),
    window=st.none() | st.integers(1, 120),
    splits=st.sampled_from([None, 1, 3]),
)
def test_any_rows(data, keys, groups, head_dim, window, splits):
    rows = sorted(data.draw(st.sets(st.integers(0, keys - 1), min_size=1, max_size=20)))
    query, key, value = inputs(rows, keys, groups, 1, head_dim, torch.float32)
    attention = Attention(scaling=head_dim**-0.5, window=window)
    check_tensors(query, key, value, torch.tensor(rows), attention, 2e-5, splits=splits)
