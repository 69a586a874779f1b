"""Chunk KV of random numbers, keys to put it under, and its comparison."""

from __future__ import annotations

import torch

from ragblend.kernels.layout import LayerKV
from ragblend.kernels.quantise import quantise
from ragblend.store.base import ChunkKV, KVReader
from ragblend.store.key import digest_fields


def random_kv(
    seed: int = 0,
    *,
    tokens: int = 12,
    layers: int = 3,
    dtype: torch.dtype = torch.bfloat16,
    seconds: float = 0.0,
) -> ChunkKV:
    """Layers of [2, tokens, 8] numbers and random token ids, the same for the same arguments."""
    generator = torch.Generator().manual_seed(seed)

    def tensor() -> torch.Tensor:
        return torch.randn(2, tokens, 8, generator=generator).to(dtype)

    ids = torch.randint(0, 50_000, (tokens,), generator=generator)
    return ChunkKV(tuple(ids.tolist()), tuple(LayerKV(tensor(), tensor()) for _ in range(layers)), seconds)


def numbered_key(number: int = 0) -> str:
    return digest_fields(f"entry {number}")


def same_kv(reader: KVReader, kv: ChunkKV) -> bool:
    """Whether every layer that ``reader`` gives is bit for bit the one in ``kv``, in the codec that it is kept in."""
    return reader.layer_count == len(kv.layers) and all(
        same_layer(reader.layer(index), layer) for index, layer in enumerate(kv.layers)
    )


def same_layer(found: LayerKV, computed: LayerKV) -> bool:
    """Whether ``found`` is bit for bit what its codec makes of ``computed``."""
    expected = quantise(computed.keys, computed.values, found.codec)
    pairs = zip(found.tensors, expected.tensors, strict=True)
    return all(one.dtype == other.dtype and torch.equal(_bits(one), _bits(other)) for one, other in pairs)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)
