"""Chunk KV in fewer bits and compressed: what a layer's bytes are, and what is refused."""

from __future__ import annotations

import sys

import pytest
import torch
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ragblend.config import CODECS
from ragblend.errors import ConfigError, CorruptEntryError, StoreError
from ragblend.kernels.layout import LayerKV
from ragblend.store.base import ChunkKV
from ragblend.store.codecs import StoreCodec, is_finite
from ragblend.store.format import encode_chunk
from ragblend.store.memory import MemoryStore
from ragblend.testing.kv import same_layer


def layer(tokens: int = 12, head_dim: int = 8, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> LayerKV:
    generator = torch.Generator().manual_seed(tokens)
    return LayerKV(*(scale * torch.randn(2, tokens, head_dim, generator=generator).to(dtype) for _ in range(2)))


def read_back(codec: StoreCodec, compact: LayerKV, data: bytes) -> LayerKV:
    keys = compact.keys
    return codec.unpack("an entry", memoryview(bytearray(data)), keys.dtype, tuple(keys.shape))


@pytest.mark.parametrize("name", CODECS)
def test_a_codec_is_known_by_its_name(name):
    codec = StoreCodec.named(name)
    assert codec.name == name
    assert codec.zstd == name.endswith("+zstd")


@pytest.mark.parametrize("name", ["", "int2", "int8+gzip", "INT8", "+zstd", "int8+zstd+zstd"])
def test_other_names_are_refused(name):
    with pytest.raises(ConfigError, match="the codec must be one of raw, "):
        StoreCodec.named(name)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(CODECS),
    tokens=st.integers(1, 140),
    head_dim=st.sampled_from([2, 8, 66, 130]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_a_layers_bytes_give_it_back(name, tokens, head_dim, dtype):
    codec, computed = StoreCodec.named(name), layer(tokens, head_dim, dtype)
    compact = codec.compact(computed, "layer 0")
    data = b"".join(codec.pack(compact))
    assert codec.zstd or len(data) == compact.nbytes == codec.layer_bytes(compact.keys.dtype, tuple(compact.keys.shape))
    found = read_back(codec, compact, data)
    assert found.codec == codec.numbers
    assert same_layer(found, computed)


@pytest.mark.parametrize("name", ["int8", "fp8+zstd", "int4"])
def test_what_is_compact_already_is_not_rounded_again(name):
    codec = StoreCodec.named(name)
    once = codec.compact(layer(), "layer 0")
    twice = codec.compact(once, "layer 0")
    pairs = zip(twice.tensors, once.tensors, strict=True)
    assert all(new.data_ptr() == old.data_ptr() for new, old in pairs)


def test_no_codec_is_stored_as_another():
    compact = StoreCodec.named("int8").compact(layer(), "layer 0")
    for name in ("raw", "int4", "fp8+zstd"):
        with pytest.raises(StoreError, match=r"layer\.00000: it is in int8 already"):
            encode_chunk("0" * 64, ChunkKV(tuple(range(12)), (compact,)), StoreCodec.named(name))


@pytest.mark.parametrize("name", ["int8", "fp8", "int4"])
def test_nan_or_inf_in_compact_numbers_is_found(name):
    compact = StoreCodec.named(name).compact(layer(), "layer 0")
    assert is_finite(compact)
    compact.value_scales.view(-1)[3] = torch.inf
    assert not is_finite(compact)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_number_is_told_from_what_is_none(dtype):
    limits = torch.finfo(dtype)
    numbers = torch.tensor([0.0, -0.0, limits.max, limits.min, limits.tiny, -limits.tiny], dtype=dtype).view(1, 2, 3)
    assert is_finite(LayerKV(numbers, numbers))
    for bad in (torch.inf, -torch.inf, torch.nan, -torch.nan):
        for place in ((0, 0, 0), (0, 1, 2)):
            spoiled = numbers.clone()
            spoiled[place] = bad
            assert not is_finite(LayerKV(numbers, spoiled))
            assert not is_finite(LayerKV(spoiled.transpose(1, 2), numbers))


@pytest.mark.parametrize("byte", [0x7F, 0xFF])
def test_the_nans_of_eight_bits_are_found(byte):
    compact = StoreCodec.named("fp8").compact(layer(), "layer 0")
    compact.keys.view(torch.uint8)[1, 2, 3] = byte
    assert not is_finite(compact)


def test_numbers_that_scales_cannot_hold_are_refused_by_name():
    with pytest.raises(ConfigError, match="use the codec raw"):
        StoreCodec.named("int8").compact(layer(dtype=torch.float32, scale=1e9), "layer 0")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no frame",
        zstandard.compress(b"a" * 100),
        zstandard.compress(bytes(1 << 20)),
        zstandard.ZstdCompressor(write_content_size=False).compress(bytes(768)),
    ],
    ids=["empty", "garbage", "too little", "too much", "of unknown size"],
)
def test_compressed_bytes_of_another_size_are_damage(data):
    codec = StoreCodec.named("raw+zstd")
    with pytest.raises(CorruptEntryError, match="an entry: compressed data are"):
        read_back(codec, layer(), data)


def test_a_cut_frame_is_damage():
    codec = StoreCodec.named("raw+zstd")
    (frame,) = codec.pack(layer())
    with pytest.raises(CorruptEntryError, match="compressed data are"):
        read_back(codec, layer(), frame[:-20])


def test_a_small_file_cannot_ask_for_all_memory():
    codec = StoreCodec.named("int8+zstd")
    for shape in ((1, 1 << 40, 64), (10**4000, 10**4000, 64)):
        with pytest.raises(CorruptEntryError, match="no layer has more than"):
            codec.unpack("an entry", memoryview(bytearray(64)), torch.int8, shape)


def test_without_its_package_compression_is_refused_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    StoreCodec.named("int8").require_package()
    with pytest.raises(ConfigError, match=r"pip install 'ragblend\[zstd\]'"):
        StoreCodec.named("int8+zstd").require_package()


def test_memory_counts_compact_bytes(make_kv, make_key):
    kv = make_kv(tokens=256)
    store = MemoryStore(10 * kv.nbytes, codec="int4")
    assert store.put(make_key(), kv) < 0.4 * kv.nbytes
    assert store.nbytes() < 0.4 * kv.nbytes
