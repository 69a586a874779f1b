"""The format document tells the truth: its reader reads our files, its formulas give our numbers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import struct
from pathlib import Path

import pytest
import torch
import xxhash

from ragblend.kernels.quantise import dequantise, quantise
from ragblend.store.catalogue import Catalogue
from ragblend.store.codecs import StoreCodec
from ragblend.store.format import encode_chunk
from ragblend.store.key import ModelIdentity, entry_key

DOCUMENT = (Path(__file__).parents[2] / "docs" / "store-format.md").read_text()


@pytest.fixture
def blob(tmp_path, make_kv, make_key):
    path = tmp_path / "entry.safetensors"
    path.write_bytes(b"".join(encode_chunk(make_key(), make_kv())))
    return path


def test_the_reader_in_the_document_reads_an_entry(blob, make_kv):
    names: dict = {}
    exec(re.search(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)[1], names)
    token_ids, layers = names["read_entry"](blob)
    kv = make_kv()
    assert token_ids.tolist() == list(kv.token_ids)
    for (dtype, keys, values), layer in zip(layers, kv.layers, strict=True):
        assert dtype == "BF16"
        for data, tensor in ((keys, layer.keys), (values, layer.values)):
            assert torch.equal(torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(tensor.shape), tensor)


@pytest.mark.parametrize("codec", ["int8", "int8+zstd", "int4", "int4+zstd"])
@pytest.mark.parametrize("tokens", [12, 130])
def test_compact_layers_are_as_described(make_kv, make_key, codec, tokens):
    kv = make_kv(tokens=tokens)
    data = b"".join(encode_chunk(make_key(), kv, StoreCodec.named(codec)))
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    assert (header["__metadata__"]["version"], header["__metadata__"]["codec"]) == ("2", codec)
    names: dict = {}
    exec(re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)[1], names)
    for index, layer in enumerate(kv.layers):
        name = f"layer.{index:05d}"
        first, end = header[name]["data_offsets"]
        stored, stated = data[begin + first : begin + end], header["__metadata__"][name]
        assert header[name]["dtype"] == "U8"
        assert header[name]["shape"] == [len(stored)]
        checksum, _, label = stated.partition(" ")
        assert checksum == xxhash.xxh3_128_hexdigest(f"{make_key()}/{name}/{codec}/{label}".encode() + stored)
        expected = dequantise(quantise(layer.keys, layer.values, codec.removesuffix("+zstd")))
        for found, numbers in zip(names["compact_layer"](codec, stated, stored), expected, strict=True):
            torch.testing.assert_close(torch.from_numpy(found), numbers, atol=1e-6, rtol=1e-6)


def test_checksums_are_as_described(blob, make_key):
    data = blob.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    for name in ("token_ids", "layer.00000", "layer.00001", "layer.00002"):
        field = header[name]
        first, end = field["data_offsets"]
        text = f"{make_key()}/{name}/{field['dtype']}/{'x'.join(str(size) for size in field['shape'])}"
        expected = xxhash.xxh3_128_hexdigest(text.encode() + data[begin + first : begin + end])
        assert header["__metadata__"][name] == expected


def test_row_checksums_are_as_described(tmp_path):
    example = re.search(r"hashed as `(str 8 settings.*?)`", DOCUMENT)[1]
    with contextlib.closing(Catalogue(tmp_path / "catalogue.db")) as catalogue:
        with catalogue.transaction() as connection:
            connection.execute("INSERT INTO settings (name, value) VALUES ('name', 'kept')")
            connection.execute(
                "INSERT INTO entries (key, namespace, tokens, bytes, created_at) VALUES ('k', 'n', 1, 2, .5)"
            )
            connection.execute(
                "INSERT INTO documents (namespace, path, title, digest, indexed_at) VALUES ('', '', '', '', 0)"
            )
        [(setting,)] = catalogue.rows("SELECT checksum FROM settings")
        [(entry,)] = catalogue.rows("SELECT checksum FROM entries")
        [(document,)] = catalogue.rows("SELECT checksum FROM documents")
    assert setting == xxhash.xxh3_128_hexdigest(example.encode())
    half = b"float 8 " + struct.pack("<d", 0.5)
    assert entry == xxhash.xxh3_128_hexdigest(b"str 7 entriesstr 1 kstr 1 nint 1 1int 1 2" + half)
    zero = b"float 8 " + bytes(8)
    expected = b"str 9 documentsint 1 1str 0 str 0 str 0 str 0 " + zero + b"NoneType 4 None"
    assert document == xxhash.xxh3_128_hexdigest(expected)


def test_keys_are_as_described():
    identity = ModelIdentity("weights", "tokenizer", "config", "dtype", "adapter", "quantisation", "rope")
    fields = [b"1", b"tenant", b"weights", b"tokenizer", b"config", b"dtype", b"adapter", b"quantisation", b"rope"]
    fields += [(7).to_bytes(4, "little"), b"raw", (8).to_bytes(4, "little") + (9).to_bytes(4, "little")]
    expected = hashlib.sha256(b"".join(len(field).to_bytes(8, "little") + field for field in fields)).hexdigest()
    assert entry_key("tenant", identity, (7,), (8, 9)) == expected
