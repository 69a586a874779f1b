"""One chunk's KV as one safetensors file. ``docs/store-format.md`` is the description for other readers.

The file holds ``token_ids`` and then one tensor per layer, so a layer is one contiguous read. The header's
metadata carries the format version, the entry's key and a checksum per tensor that covers the key and the
tensor's name, type and shape as well as its bytes: a blob or a layer in another's place is found out like a
flipped bit.

Version 1 holds KV as it was computed, [2, kv_heads, tokens, head_dim] a layer, keys before values. Version 2
holds every other codec, the bytes of a layer's tensors, with their type and shape in the metadata.

The checksum is XXH3 with 128 bits, because it is paid on every hit. Measured on one core (AMD EPYC,
CPython 3.11) over 94 MB in layers of 1.5 MB, 4,096 tokens of the embedded model: blake2b 67 ms, sha256
with SHA instructions 46 ms, crc32 13 ms, xxh3 3 ms. It is there to find damage; whoever can write to
the folder could recompute any checksum whose key lies in the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import xxhash

from ragblend.config import CODECS
from ragblend.errors import CorruptEntryError, StoreError
from ragblend.kernels.layout import LayerKV
from ragblend.store.base import ChunkKV
from ragblend.store.codecs import RAW, StoreCodec
from ragblend.store.key import token_bytes

FORMAT_NAME = "ragblend.chunk-kv"
RAW_VERSION = "1"
COMPACT_VERSION = "2"
MAX_HEADER_BYTES = 1 << 20
TOKEN_IDS = "token_ids"
DTYPES = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class StaleEntryError(CorruptEntryError):
    """A file of another format version or of another key."""

    cause = "stale"


@dataclass(frozen=True, slots=True)
class Span:
    """Where one tensor lies: ``begin`` counts bytes from the start of the file.

    dtype, shape: of the token ids, or of a layer's keys. label: what else the checksum covers.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    label: str
    begin: int
    nbytes: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Layout:
    """The tensors of one file: the token ids, then the layers in order, without gaps."""

    codec: StoreCodec
    token_ids: Span
    layers: tuple[Span, ...]


def layer_name(index: int) -> str:
    return f"layer.{index:05d}"


def checksum(key: str, name: str, label: str, parts: Iterable[bytes | memoryview]) -> str:
    """XXH3-128 (32 hex digits) over ``key/name/label`` and then the tensor's bytes."""
    hasher = xxhash.xxh3_128(f"{key}/{name}/{label}".encode())
    for part in parts:
        hasher.update(part)
    return hasher.hexdigest()


def encode_chunk(key: str, kv: ChunkKV, codec: StoreCodec = RAW) -> list[bytes | memoryview]:
    """The file of one entry, as the pieces to write one after another.

    Raises ConfigError for NaN or Inf and for what ``codec`` cannot hold, StoreError for shapes and types that
    the format cannot hold.
    """
    tokens = len(kv.token_ids)
    if not tokens or not kv.layers:
        raise StoreError("chunk KV without tokens or layers cannot be stored")
    plain = codec == RAW
    pieces: list[bytes | memoryview] = [token_bytes(kv.token_ids)]
    metadata = {"format": FORMAT_NAME, "version": RAW_VERSION if plain else COMPACT_VERSION, "key": key}
    if not plain:
        metadata["codec"] = codec.name
    metadata[TOKEN_IDS] = checksum(key, TOKEN_IDS, f"I32/{tokens}", pieces)
    end = 4 * tokens
    tensors: dict[str, Any] = {TOKEN_IDS: {"dtype": "I32", "shape": [tokens], "data_offsets": [0, end]}}

    for index, given in enumerate(kv.layers):
        name = layer_name(index)
        layer = codec.compact(_checked(given, name, tokens), name)
        if layer.codec != codec.numbers:
            raise StoreError(f"{name}: it is in {layer.codec} already, and cannot be stored as {codec.name}")
        dtype, shape = DTYPE_NAMES[layer.keys.dtype], tuple(layer.keys.shape)
        parts = codec.pack(layer)
        nbytes = sum(map(len, parts))
        begin, end = end, end + nbytes
        if plain:
            metadata[name] = checksum(key, name, _label(dtype, (2, *shape)), parts)
            tensors[name] = {"dtype": dtype, "shape": (2, *shape), "data_offsets": [begin, end]}
        else:
            label = _label(dtype, shape)
            metadata[name] = f"{checksum(key, name, f'{codec.name}/{label}', parts)} {label}"
            tensors[name] = {"dtype": "U8", "shape": [nbytes], "data_offsets": [begin, end]}
        pieces += parts

    header = json.dumps({"__metadata__": metadata, **tensors}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return [len(header).to_bytes(8, "little"), header, *pieces]


def _checked(layer: LayerKV, name: str, tokens: int) -> LayerKV:
    """A layer that the format can hold. Raises StoreError."""
    keys, values = layer.keys, layer.values
    if not StoreCodec(layer.codec).holds(keys.dtype) or keys.dtype != values.dtype:
        raise StoreError(
            f"{name}: keys and values must both be float32, float16 or bfloat16, got {keys.dtype} and {values.dtype}"
        )
    if keys.ndim != 3 or keys.shape != values.shape or keys.shape[1] != tokens or not keys.numel():
        raise StoreError(
            f"{name}: keys and values must both be [kv_heads, {tokens}, head_dim], "
            f"got {list(keys.shape)} and {list(values.shape)}"
        )
    return layer


def decode_header(key: str, header: bytes, file_bytes: int) -> Layout:
    """Check a file's header against everything that ``encode_chunk`` would have written.

    header: the bytes between the length field and the data. file_bytes: size of the whole file.
    Raises StaleEntryError for another version or key, CorruptEntryError for anything else.
    """
    if not header.startswith(b"{"):
        raise CorruptEntryError("the header is not a JSON object")
    try:
        fields = json.loads(header.decode("utf-8"), object_pairs_hook=_object_without_duplicates)
        metadata = fields.pop("__metadata__")
        if metadata["format"] != FORMAT_NAME:
            raise CorruptEntryError("not a chunk KV file")
        if metadata["version"] not in (RAW_VERSION, COMPACT_VERSION) or metadata["key"] != key:
            raise StaleEntryError("the file is of another format version or key")
        plain = metadata["version"] == RAW_VERSION
        names = (TOKEN_IDS, *map(layer_name, range(len(fields) - 1)))
        if metadata.keys() != {"format", "version", "key", *names, *(() if plain else ("codec",))}:
            raise CorruptEntryError("the header's checksums do not match its tensors")
        codec = RAW if plain else _codec(metadata["codec"])
        begin = data_begin = 8 + len(header)
        spans = []
        for name in names:
            spans.append(_decode_span(name, fields[name], metadata[name], codec, begin, data_begin))
            begin += spans[-1].nbytes
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CorruptEntryError(f"the header is damaged ({type(error).__name__})") from error
    token_ids, *layers = spans
    if begin != file_bytes:
        raise CorruptEntryError(f"the file has {file_bytes:,} bytes, its header describes {begin:,}")
    if not layers or any(span.shape[1] != token_ids.shape[0] for span in layers):
        raise CorruptEntryError("the layers and the token ids differ in length")
    return Layout(codec, token_ids, tuple(layers))


def _codec(name: Any) -> StoreCodec:
    codec = RAW if name not in CODECS else StoreCodec.named(name)
    if codec == RAW:
        raise ValueError(name)
    return codec


def _decode_span(name: str, field: dict[str, Any], stated: Any, codec: StoreCodec, begin: int, data_begin: int) -> Span:
    """stated: what the metadata say of the tensor. Raises ValueError, KeyError, TypeError for what was not written."""
    if field.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(name)
    sizes, offsets = tuple(field["shape"]), field["data_offsets"]
    shape: tuple[int, ...]
    if any(type(number) is not int for number in (*sizes, *offsets)) or any(size < 1 for size in sizes):
        raise ValueError(name)
    if name == TOKEN_IDS:
        (tokens,) = sizes
        span = Span(name, torch.int32, sizes, _label("I32", sizes), begin, 4 * tokens, stated)
        sound = field["dtype"] == "I32"
    elif codec == RAW:
        pair, heads, tokens, width = sizes
        dtype, shape = DTYPES[field["dtype"]], (heads, tokens, width)
        span = Span(name, dtype, shape, _label(field["dtype"], sizes), begin, codec.layer_bytes(dtype, shape), stated)
        sound = pair == 2 and codec.holds(dtype)
    else:
        digest, label = stated.split(" ")
        dtype, shape = _parse_label(label)
        (nbytes,) = sizes
        span = Span(name, dtype, shape, f"{codec.name}/{label}", begin, nbytes, digest)
        plain_bytes = codec.layer_bytes(dtype, shape)
        sound = field["dtype"] == "U8" and codec.holds(dtype) and (codec.zstd or nbytes == plain_bytes)
    if not sound or offsets != [begin - data_begin, begin - data_begin + span.nbytes]:
        raise ValueError(name)
    return span


def _label(dtype: str, shape: Iterable[int]) -> str:
    """A type and a shape as text, such as ``BF16/2x3x256x64``."""
    return f"{dtype}/{'x'.join(map(str, shape))}"


def _parse_label(label: str) -> tuple[torch.dtype, tuple[int, ...]]:
    name, sizes = label.split("/")
    heads, tokens, width = map(int, sizes.split("x"))
    if _label(name, (heads, tokens, width)) != label or min(heads, tokens, width) < 1:
        raise ValueError(label)
    return DTYPES[name], (heads, tokens, width)


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name stands twice")
    return fields
