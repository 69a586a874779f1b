"""Chunk KV of random numbers, and stores to put it in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ragblend.store.base import ChunkKV, LayerKV
from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore
from ragblend.store.key import digest_fields


def random_kv(
    seed: int = 0,
    *,
    tokens: int = 12,
    layers: int = 3,
    dtype: torch.dtype = torch.bfloat16,
    seconds: float = 0.0,
) -> ChunkKV:
    generator = torch.Generator().manual_seed(seed)

    def tensor() -> torch.Tensor:
        return torch.randn(2, tokens, 8, generator=generator).to(dtype)

    ids = torch.randint(0, 50_000, (tokens,), generator=generator)
    return ChunkKV(tuple(ids.tolist()), tuple(LayerKV(tensor(), tensor()) for _ in range(layers)), seconds)


def numbered_key(number: int = 0) -> str:
    return digest_fields(f"entry {number}")


def equal_kv(reader: object, kv: ChunkKV) -> bool:
    """Whether every layer that ``reader`` gives is bit for bit the one in ``kv``."""
    return reader.layer_count == len(kv.layers) and all(
        torch.equal(found.keys, layer.keys) and torch.equal(found.values, layer.values)
        for found, layer in ((reader.layer(index), layer) for index, layer in enumerate(kv.layers))
    )


@pytest.fixture
def make_kv() -> Callable[..., ChunkKV]:
    return random_kv


@pytest.fixture
def make_key() -> Callable[..., str]:
    return numbered_key


@pytest.fixture
def same_kv() -> Callable[[object, ChunkKV], bool]:
    return equal_kv


@pytest.fixture
def catalogue(tmp_path: Path) -> Iterator[Catalogue]:
    opened = Catalogue(tmp_path / "catalogue.db")
    yield opened
    opened.close()


@pytest.fixture
def disk(tmp_path: Path, catalogue: Catalogue) -> DiskStore:
    return DiskStore(tmp_path, catalogue)
