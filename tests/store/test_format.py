"""The file of one entry: readable by safetensors itself, and refused when anything in it is off.

Every hostile file here must be refused with CorruptEntryError, whatever it looks like: no other
error, no crash, and never a wrong layer.
"""

from __future__ import annotations

import json
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from ragblend.errors import ConfigError, CorruptEntryError, StoreError
from ragblend.kernels.layout import LayerKV
from ragblend.store.base import ChunkKV
from ragblend.store.codecs import StoreCodec
from ragblend.store.format import MAX_HEADER_BYTES, StaleEntryError, decode_header, encode_chunk, layer_name
from ragblend.store.reader import ChunkReader
from ragblend.store.source import FileSource
from ragblend.testing.kv import same_layer


@pytest.fixture
def kv(make_kv):
    return make_kv()


@pytest.fixture
def key(make_key):
    return make_key()


@pytest.fixture(params=["raw", "int8", "int4+zstd"])
def codec(request) -> StoreCodec:
    return StoreCodec.named(request.param)


@pytest.fixture
def blob(key, kv, codec) -> bytes:
    return b"".join(encode_chunk(key, kv, codec))


@pytest.fixture
def raw_blob(key, kv) -> bytes:
    return b"".join(encode_chunk(key, kv))


@pytest.fixture
def read(tmp_path, key):
    """Write bytes to a file and read all of it as the entry ``key``."""

    path = tmp_path / "entry.safetensors"
    path.touch()

    def read_all(data: bytes) -> list[LayerKV]:
        with path.open("r+b") as file:  # in place: emptying a file first makes some filesystems sync it
            file.write(data)
            file.truncate()
        reader = ChunkReader(FileSource(path), key)
        try:
            return [reader.layer(index) for index in range(reader.layer_count)]
        finally:
            reader.close()

    return read_all


def header_length(blob: bytes) -> int:
    return int.from_bytes(blob[:8], "little")


def with_header(blob: bytes, header: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + blob[8 + header_length(blob) :]


def edited(blob: bytes, edit) -> bytes:
    """The file with its header changed by ``edit``, which is given the header's fields."""
    fields = json.loads(blob[8 : 8 + header_length(blob)])
    edit(fields)
    return with_header(blob, json.dumps(fields).encode())


def test_safetensors_reads_the_file(raw_blob, kv, key, tmp_path):
    path = tmp_path / "entry.safetensors"
    path.write_bytes(raw_blob)
    with safe_open(path, "pt") as opened:
        assert opened.metadata()["key"] == key
        assert opened.get_tensor("token_ids").tolist() == list(kv.token_ids)
        for index, layer in enumerate(kv.layers):
            assert torch.equal(opened.get_tensor(layer_name(index)), torch.stack([layer.keys, layer.values]))


def test_safetensors_reads_the_bytes_of_a_compact_one(blob, kv, codec, tmp_path):
    path = tmp_path / "entry.safetensors"
    path.write_bytes(blob)
    with safe_open(path, "pt") as opened:
        stored = opened.get_tensor(layer_name(0)).view(torch.uint8).flatten().numpy().tobytes()
    assert stored == b"".join(codec.pack(codec.compact(kv.layers[0], "")))


def test_a_layer_is_one_contiguous_range_and_the_layers_follow_each_other(blob, kv, key, codec):
    layout = decode_header(key, blob[8 : 8 + header_length(blob)], len(blob))
    ends = [span.begin + span.nbytes for span in (layout.token_ids, *layout.layers)]
    assert [span.begin for span in layout.layers] == ends[:-1]
    assert ends[-1] == len(blob)
    first = layout.layers[0]
    assert blob[first.begin : first.begin + first.nbytes] == b"".join(codec.pack(codec.compact(kv.layers[0], "")))


def test_the_intact_file_is_read(blob, read, kv):
    assert all(same_layer(found, layer) for found, layer in zip(read(blob), kv.layers, strict=True))


@pytest.mark.parametrize(
    ("layer", "error"),
    [
        (LayerKV(torch.zeros(2, 3, 8), torch.zeros(2, 3, 4)), StoreError),
        (LayerKV(torch.zeros(2, 4, 8), torch.zeros(2, 4, 8)), StoreError),
        (LayerKV(torch.zeros(3, 8), torch.zeros(3, 8)), StoreError),
        (LayerKV(torch.zeros(0, 3, 8), torch.zeros(0, 3, 8)), StoreError),
        (LayerKV(torch.zeros(2, 3, 8), torch.zeros(2, 3, 8).half()), StoreError),
        (LayerKV(torch.zeros(2, 3, 8).double(), torch.zeros(2, 3, 8).double()), StoreError),
        (LayerKV(torch.zeros(2, 3, 8), torch.full((2, 3, 8), torch.inf)), ConfigError),
    ],
    ids=["value size", "token count", "rank", "no heads", "mixed types", "float64", "inf"],
)
def test_what_the_format_cannot_hold_is_refused(key, layer, error):
    with pytest.raises(error, match=r"layer\.00000"):
        encode_chunk(key, ChunkKV((1, 2, 3), (layer,)))


def test_nothing_is_no_entry(key, kv):
    with pytest.raises(StoreError):
        encode_chunk(key, ChunkKV((), kv.layers))
    with pytest.raises(StoreError):
        encode_chunk(key, ChunkKV(kv.token_ids, ()))


def test_truncated_anywhere(blob, read):
    everywhere_in_the_header = range(8 + header_length(blob) + 1)
    for length in (*everywhere_in_the_header, *random.Random(0).sample(range(len(blob)), 200), len(blob) - 1):
        with pytest.raises(CorruptEntryError):
            read(blob[:length])


@pytest.mark.parametrize("tail", [b"\0", b" " * 4096])
def test_extended(blob, read, tail):
    with pytest.raises(CorruptEntryError, match="bytes"):
        read(blob + tail)


def test_a_flipped_bit_anywhere(blob, read):
    bits = random.Random(0).sample(range(8 * len(blob)), 1000)
    for bit in bits:
        data = bytearray(blob)
        data[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptEntryError):
            read(bytes(data))


@pytest.mark.parametrize("filling", [b"\0", b"\xff", b"{", b"9"])
def test_overwritten_runs(blob, read, filling):
    for begin in range(0, len(blob), 97):
        data = blob[:begin] + filling * 64 + blob[begin + 64 :]
        if data != blob:
            with pytest.raises(CorruptEntryError):
                read(data)


def test_a_header_larger_than_the_cap(blob, read):
    padded = with_header(blob, blob[8 : 8 + header_length(blob)].ljust(MAX_HEADER_BYTES + 8))
    with pytest.raises(CorruptEntryError, match="length"):
        read(padded)
    with pytest.raises(CorruptEntryError, match="length"):
        read(b"\xff" * 8 + blob[8:])


@pytest.mark.parametrize(
    "edit",
    [
        lambda fields: fields["layer.00000"].update(dtype="F16"),
        lambda fields: fields["layer.00000"].update(dtype="I8"),
        lambda fields: fields["layer.00000"].update(dtype=["BF16"]),
        lambda fields: fields["token_ids"].update(dtype="F32"),
        lambda fields: fields["layer.00000"].update(shape=[2, 2, 8, 12]),
        lambda fields: fields["layer.00000"].update(shape=[2, 12, 2, 8]),
        lambda fields: fields["layer.00000"].update(shape=[4, 1, 12, 8]),
        lambda fields: fields["layer.00000"].update(shape=[2, 2, 96]),
        lambda fields: fields["layer.00000"].update(shape=[2, -2, -12, 8]),
        lambda fields: fields["layer.00000"].update(shape=[2, 2, 12.0, 8]),
        lambda fields: fields["layer.00000"].update(shape=[2, 2, 12, 10**400]),
        lambda fields: fields["layer.00000"].update(shape=12),
        lambda fields: fields["layer.00000"].update(data_offsets=[0, 768]),
        lambda fields: fields["layer.00001"].update(data_offsets=fields["layer.00000"]["data_offsets"]),
        lambda fields: fields["layer.00000"].update(data_offsets=[48, 815]),
        lambda fields: fields["layer.00000"].update(data_offsets=[48, "816"]),
        lambda fields: fields["layer.00000"].update(data_offsets=[True, 816]),
        lambda fields: fields["layer.00000"].update(data_offsets=None),
        lambda fields: fields["layer.00000"].update(extra=1),
        lambda fields: fields["layer.00000"].pop("shape"),
        lambda fields: fields.update({"layer.00000": []}),
        lambda fields: fields.update({"layer.00009": fields.pop("layer.00002")}),
        lambda fields: fields.update({"layer.2": fields.pop("layer.00002")}),
        lambda fields: fields.update({"other": fields["layer.00002"]}),
        lambda fields: fields.pop("layer.00002"),
        lambda fields: fields.pop("token_ids"),
        lambda fields: fields.pop("__metadata__"),
        lambda fields: fields.update(__metadata__="text"),
        lambda fields: fields["__metadata__"].pop("layer.00001"),
        lambda fields: fields["__metadata__"].update(more="text"),
        lambda fields: fields["__metadata__"].update(format="pt"),
        lambda fields: fields["__metadata__"].update({"layer.00001": 7}),
        lambda fields: fields["__metadata__"].update(
            {"layer.00001": fields["__metadata__"]["layer.00000"], "layer.00000": fields["__metadata__"]["layer.00001"]}
        ),
        lambda fields: fields["__metadata__"].update(version="3"),
        lambda fields: fields["__metadata__"].update(key="0" * 64),
        lambda fields: fields["__metadata__"].update(version={"1": "2", "2": "1"}[fields["__metadata__"]["version"]]),
        lambda fields: fields["__metadata__"].update(codec="fp8"),
        lambda fields: fields["__metadata__"].update(codec="raw"),
        lambda fields: fields["__metadata__"].update(codec=["int8"]),
        lambda fields: fields["__metadata__"].update(codec=fields["__metadata__"].get("codec", "int8") + "+zstd"),
    ],
)
def test_a_header_that_says_anything_else(blob, read, edit):
    with pytest.raises(CorruptEntryError):
        read(edited(blob, edit))


@pytest.mark.parametrize("change", [{"version": "3"}, {"key": "0" * 64}], ids=str)
def test_another_version_or_key_is_stale(blob, read, change):
    with pytest.raises(StaleEntryError):
        read(edited(blob, lambda fields: fields["__metadata__"].update(change)))


@pytest.mark.parametrize(
    "header",
    [
        b"{}",
        b"[]",
        b"null",
        b'"token_ids"',
        b"{",
        b"\xff\xfe",
        b" {}",
        b"[" * 50_000,
        b'{"a":' * 50_000,
        b'{"a":1,"a":1}',
    ],
    ids=lambda header: repr(header[:12]),
)
def test_a_header_that_is_no_header(blob, read, header):
    with pytest.raises(CorruptEntryError):
        read(with_header(blob, header))


def test_a_name_that_stands_twice(blob, read):
    header = blob[8 : 8 + header_length(blob)].rstrip()
    doubled = header[:-1] + b',"token_ids":' + json.dumps(json.loads(header)["token_ids"]).encode() + b"}"
    with pytest.raises(CorruptEntryError):
        read(with_header(blob, doubled))


def test_layers_swapped_within_a_file(blob, read, key):
    layout = decode_header(key, blob[8 : 8 + header_length(blob)], len(blob))
    first, second = (blob[span.begin : span.begin + span.nbytes] for span in layout.layers[:2])
    begin = layout.layers[0].begin
    with pytest.raises(CorruptEntryError, match=r"layer\.00000 does not match"):
        read(blob[:begin] + second + first + blob[begin + len(first) + len(second) :])


def test_the_layers_of_another_entry_under_this_key(read, make_kv, make_key, key, codec):
    foreign = b"".join(encode_chunk(make_key(1), make_kv(1), codec))
    renamed = edited(foreign, lambda fields: fields["__metadata__"].update(key=key))
    with pytest.raises(CorruptEntryError, match="token_ids does not match"):
        read(renamed)


def test_nan_with_a_valid_checksum_is_not_handed_out(read, key, kv, monkeypatch):
    kv.layers[1].values[0, 0, 0] = torch.nan
    with monkeypatch.context() as patched:
        patched.setattr("ragblend.store.codecs.is_finite", lambda layer: True)
        data = b"".join(encode_chunk(key, kv))
    with pytest.raises(CorruptEntryError, match="NaN or Inf"):
        read(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(header=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()), size=st.integers(0, 10_000))
def test_any_header_is_refused_in_the_same_way(header, size):
    with pytest.raises(CorruptEntryError):
        decode_header("0" * 64, header, size)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), value=JSON, codec=st.sampled_from(["raw", "int8", "fp8+zstd"]))
def test_any_field_replaced_by_anything_is_refused(data, value, codec):
    """One field of a valid header, at any depth, becomes an arbitrary JSON value."""
    kv = ChunkKV((1, 2), (LayerKV(torch.ones(1, 2, 2), torch.ones(1, 2, 2)),))
    blob = b"".join(encode_chunk("0" * 64, kv, StoreCodec.named(codec)))
    header = json.loads(blob[8 : 8 + header_length(blob)])
    fields = header
    while True:
        name = data.draw(st.sampled_from(sorted(fields)))
        if not isinstance(fields[name], dict) or data.draw(st.booleans()):
            break
        fields = fields[name]
    if fields is header["__metadata__"] and name in ("token_ids", "layer.00000"):
        return  # a checksum, which is compared when its tensor is read
    original, fields[name] = fields[name], value
    encoded = json.dumps(header).encode()
    file_bytes = len(blob) - header_length(blob) + len(encoded)
    if json.dumps(value) == json.dumps(original):
        decode_header("0" * 64, encoded, file_bytes)
    else:
        with pytest.raises(CorruptEntryError):
            decode_header("0" * 64, encoded, file_bytes)
