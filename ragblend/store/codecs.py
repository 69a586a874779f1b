"""How a store keeps chunk KV: numbers in so many bits, and each layer compressed or not.

Compression is Zstandard's at its fastest level: higher ones save nothing more on chunk KV.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import cast

import torch
from torch import Tensor

from ragblend.config import CODECS, require
from ragblend.errors import ConfigError, CorruptEntryError
from ragblend.kernels.layout import INT4_GROUP, Codec, LayerKV
from ragblend.kernels.quantise import quantise
from ragblend.store.source import allocate

_PACKED_TYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn, "int4": torch.uint8}
_PLAIN_TYPES = (torch.float32, torch.float16, torch.bfloat16)
# The bits of positive infinity; float8_e4m3fn has one NaN of each sign in its place.
_INFINITY = {
    torch.float64: 0x7FF0_0000_0000_0000,
    torch.float32: 0x7F80_0000,
    torch.float16: 0x7C00,
    torch.bfloat16: 0x7F80,
    torch.float8_e4m3fn: 0x7F,
}
_INTEGERS = {
    8: (torch.int64, "uint64"),
    4: (torch.int32, "uint32"),
    2: (torch.int16, "uint16"),
    1: (torch.int8, "uint8"),
}
# Nothing that is honest comes near it; a small file must not fill the memory.
_MOST_LAYER_BYTES = 1 << 32


@dataclass(frozen=True, slots=True)
class StoreCodec:
    """numbers: what keys and values are rounded to. zstd: whether layers are compressed on the disk."""

    numbers: Codec = "raw"
    zstd: bool = False

    @classmethod
    def named(cls, name: str) -> StoreCodec:
        """The codec called ``name``, one of ``config.CODECS``. Raises ConfigError."""
        require(name in CODECS, f"the codec must be one of {', '.join(CODECS)}, got {name!r}")
        numbers, _, compression = name.partition("+")
        return cls(cast(Codec, numbers), bool(compression))

    def require_package(self) -> None:
        """Raise ConfigError if compressing needs a package that is not there."""
        if self.zstd:
            _zstandard()

    @property
    def name(self) -> str:
        return f"{self.numbers}+zstd" if self.zstd else self.numbers

    def compact(self, layer: LayerKV, name: str) -> LayerKV:
        """A layer in this codec's numbers; one that is compact already stays as it is.

        Raises ConfigError for NaN or Inf, and for what cannot be held (see ``quantise``).
        """
        layer = layer.map(Tensor.detach)
        if not is_finite(layer):
            raise ConfigError(f"{name}: the model computed NaN or Inf for a chunk; use another dtype (float32)")
        if layer.codec != "raw" or self.numbers == "raw":
            return layer
        return quantise(layer.keys, layer.values, self.numbers)

    def holds(self, dtype: torch.dtype) -> bool:
        """Whether keys and values of this codec may have this type."""
        return dtype in _PLAIN_TYPES if self.numbers == "raw" else dtype == _PACKED_TYPES[self.numbers]

    def shapes(self, keys: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The shapes of a layer's tensors, from that of its keys."""
        if self.numbers == "raw":
            return [keys, keys]
        heads, tokens, width = keys
        if self.numbers == "int4":
            token_groups, channel_groups = -(-tokens // INT4_GROUP), -(-2 * width // INT4_GROUP)
            return [keys, keys, (2, heads, token_groups, 2 * width), (2, heads, tokens, channel_groups)]
        return [keys, keys, (heads, width), (heads, tokens)]

    def layer_bytes(self, dtype: torch.dtype, keys: tuple[int, ...]) -> int:
        """Bytes of a layer before compression. Raises CorruptEntryError where no layer is that large."""
        nbytes = sum(math.prod(shape) * kind.itemsize for shape, kind in self._tensors(dtype, keys))
        if nbytes > _MOST_LAYER_BYTES:
            raise CorruptEntryError(f"no layer has more than {_MOST_LAYER_BYTES:,} bytes")
        return nbytes

    def pack(self, layer: LayerKV) -> list[bytes | memoryview]:
        """A layer's tensors as the pieces of its bytes in a file."""
        pieces: list[bytes | memoryview] = [_bytes_of(tensor) for tensor in layer.tensors]
        return [_zstandard().ZstdCompressor(level=1).compress(b"".join(pieces))] if self.zstd else pieces

    def unpack(self, name: str, data: memoryview, dtype: torch.dtype, keys: tuple[int, ...]) -> LayerKV:
        """The inverse of ``pack``, on the memory of ``data``. Raises CorruptEntryError, EntryAllocationError."""
        nbytes = self.layer_bytes(dtype, keys)
        plain = torch.frombuffer(_decompress(name, data, nbytes) if self.zstd else data, dtype=torch.uint8)
        tensors = []
        for shape, kind in self._tensors(dtype, keys):
            count = math.prod(shape) * kind.itemsize
            tensors.append(plain[:count].view(kind).view(shape))
            plain = plain[count:]
        return LayerKV(tensors[0], tensors[1], self.numbers, *tensors[2:])

    def _tensors(self, dtype: torch.dtype, keys: tuple[int, ...]) -> Sequence[tuple[tuple[int, ...], torch.dtype]]:
        shapes = self.shapes(keys)
        return [*((shape, dtype) for shape in shapes[:2]), *((shape, torch.float16) for shape in shapes[2:])]


RAW = StoreCodec()


def is_finite(layer: LayerKV) -> bool:
    """Whether there is neither NaN nor Inf in a layer."""
    return all(map(_is_finite, layer.tensors))


def _is_finite(tensor: Tensor) -> bool:
    """By the bits: NaN and Inf are the largest of each sign, so two maxima tell.

    In numpy, which needs one core for that: torch would wake the threads that compute a request meanwhile.
    """
    infinity = _INFINITY.get(tensor.dtype)
    if infinity is None:
        return True
    signed, unsigned = _INTEGERS[tensor.dtype.itemsize]
    bits = tensor.cpu().view(signed).numpy()
    sign = 1 << (8 * tensor.dtype.itemsize - 1)
    return int(bits.max()) < infinity and int(bits.view(unsigned).max()) < infinity + sign


def _bytes_of(tensor: Tensor) -> memoryview:
    flat: memoryview = tensor.detach().cpu().contiguous().view(torch.uint8).numpy().reshape(-1).data
    return flat


def _decompress(name: str, data: memoryview, nbytes: int) -> memoryview:
    zstandard = _zstandard()
    plain = allocate(name, nbytes)
    try:
        if zstandard.frame_content_size(data) == nbytes:
            reader, done = zstandard.ZstdDecompressor().stream_reader(data), 0
            while done < nbytes and (count := reader.readinto(plain[done:])):
                done += count
            if done == nbytes:
                return plain
    except zstandard.ZstdError as error:
        raise CorruptEntryError(f"{name}: compressed data are damaged ({error})") from error
    raise CorruptEntryError(f"{name}: compressed data are not those of {nbytes:,} bytes")


def _zstandard() -> ModuleType:
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError("compressed KV needs the package zstandard: pip install 'ragblend[zstd]'") from error
    return zstandard
