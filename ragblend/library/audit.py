"""Comparing stored KV with KV computed now: what no checksum can tell, whether the bytes were right to begin with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ragblend.errors import EntryError
from ragblend.library.protocol import LibraryEngine
from ragblend.store.base import ChunkKV, KVReader, KVStore

# Largest distance of a layer's keys or values from those computed again, relative to their norm. Sums in another
# order, as in another batch, stay far below it; KV of another text, prefix or model lies far above.
_TOLERANCES = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}


def deviating_entries(store: KVStore, engine: LibraryEngine, entries: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """Keys of those ``entries`` (token ids by key) whose stored KV is not what ``engine`` computes for them."""
    for (key, token_ids), computed in zip(entries.items(), engine.prefill(list(entries.values())), strict=True):
        reader = store.open(key, token_ids)
        if reader is not None:
            with contextlib.closing(reader):
                if _deviates(reader, computed):
                    yield key


def _deviates(reader: KVReader, computed: ChunkKV) -> bool:
    if reader.layer_count != len(computed.layers):
        return True
    for index, expected in enumerate(computed.layers):
        try:
            stored = reader.layer(index)
        except EntryError:
            return True
        if _far(stored.keys, expected.keys) or _far(stored.values, expected.values):
            return True
    return False


def _far(stored: Tensor, expected: Tensor) -> bool:
    if stored.shape != expected.shape or stored.dtype != expected.dtype:
        return True
    distance = torch.linalg.vector_norm(stored.float() - expected.float())
    return bool(distance > _TOLERANCES[expected.dtype] * torch.linalg.vector_norm(expected.float()))
