"""Comparing stored KV with KV computed now: what no checksum can tell, whether the bytes were right to begin with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.linalg import vector_norm

from ragblend.errors import EntryError
from ragblend.kernels.quantise import dequantise, quantise
from ragblend.library.protocol import LibraryEngine
from ragblend.library.sections import Wanted, prefill
from ragblend.store.base import ChunkKV, KVReader, KVStore

# Largest distance of a layer's keys or values from those computed again, relative to their norm. Sums in another
# order, as in another batch, stay far below it; KV of another text, prefix or model lies far above.
_TOLERANCES = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
# What a codec loses differs a little between the KV that was stored and the KV computed now.
_CODEC_SLACK = 1.1


def deviating_entries(store: KVStore, engine: LibraryEngine, entries: Mapping[str, Wanted]) -> Iterator[str]:
    """Keys of those ``entries`` whose stored KV is not what ``engine`` computes for them."""
    for key, computed in zip(entries, prefill(engine, entries.values()), strict=True):
        reader = store.open(key, computed.token_ids)
        if reader is not None:
            with contextlib.closing(reader):
                if _deviates(reader, computed):
                    yield key


def _deviates(reader: KVReader, computed: ChunkKV) -> bool:
    if reader.layer_count != len(computed.layers):
        return True
    for index, expected in enumerate(computed.layers):
        try:
            stored = reader.layer(index).map(Tensor.cpu)
        except EntryError:
            return True
        if stored.codec == "raw" and stored.keys.dtype != expected.keys.dtype:
            return True
        rounded = dequantise(quantise(expected.keys, expected.values, stored.codec))
        if any(map(_far, dequantise(stored), (expected.keys, expected.values), rounded)):
            return True
    return False


def _far(stored: Tensor, expected: Tensor, rounded: Tensor) -> bool:
    """rounded: ``expected`` as the codec keeps it, so that what the codec itself loses is no deviation."""
    if stored.shape != expected.shape:
        return True
    exact = expected.float()
    allowed = _TOLERANCES[expected.dtype] * vector_norm(exact) + _CODEC_SLACK * vector_norm(rounded.float() - exact)
    return bool(vector_norm(stored.float() - exact) > allowed)
