"""Chunk KV in this process's memory, within a byte budget."""

from __future__ import annotations

import threading
from collections import OrderedDict

from ragblend.config import require
from ragblend.errors import ConfigError, StoreError, StoreFullError
from ragblend.store.base import ChunkKV, KVStore, LayerKV
from ragblend.store.format import is_finite


class MemoryReader:
    """A stored entry (a KVReader). It stays readable when the entry is evicted or deleted."""

    def __init__(self, kv: ChunkKV) -> None:
        self._kv = kv

    @property
    def tokens(self) -> int:
        return len(self._kv.token_ids)

    @property
    def layer_count(self) -> int:
        return len(self._kv.layers)

    def layer(self, index: int) -> LayerKV:
        return self._kv.layers[index]

    def close(self) -> None:
        """Nothing is held beyond the entry itself."""


class MemoryStore(KVStore):
    """Keeps copies of entries on the CPU and drops the least recently opened ones over ``budget_bytes``.

    Entries keep their tensors' types. An entry larger than the budget raises StoreFullError.
    """

    def __init__(self, budget_bytes: int) -> None:
        super().__init__()
        require(budget_bytes > 0, f"the memory budget must be positive, got {budget_bytes} bytes")
        self.budget_bytes = budget_bytes
        self._entries: OrderedDict[str, ChunkKV] | None = OrderedDict()
        self._nbytes = 0
        self._lock = threading.Lock()

    def contains(self, key: str) -> bool:
        with self._lock:
            return key in self._opened()

    def put(self, key: str, kv: ChunkKV) -> int:
        if kv.nbytes > self.budget_bytes:
            raise StoreFullError(f"an entry of {kv.nbytes:,} bytes exceeds the memory budget of {self.budget_bytes:,}")
        with self._lock:
            existing = self._opened().get(key)
        if existing is not None:
            return existing.nbytes
        copy = _private_copy(kv)
        with self._lock:
            entries = self._opened()
            if key not in entries:
                entries[key] = copy
                self._nbytes += copy.nbytes
            while self._nbytes > self.budget_bytes:
                self._nbytes -= entries.popitem(last=False)[1].nbytes
        return copy.nbytes

    def open(self, key: str, token_ids: tuple[int, ...]) -> MemoryReader | None:
        with self._lock:
            entries = self._opened()
            kv = entries.get(key)
            if kv is not None and kv.token_ids == token_ids:
                entries.move_to_end(key)
                return MemoryReader(kv)
        self.count_miss("missing" if kv is None else "stale")
        return None

    def delete(self, key: str) -> None:
        with self._lock:
            kv = self._opened().pop(key, None)
            if kv is not None:
                self._nbytes -= kv.nbytes

    def nbytes(self) -> int:
        with self._lock:
            self._opened()
            return self._nbytes

    def close(self) -> None:
        with self._lock:
            self._entries = None

    def _opened(self) -> OrderedDict[str, ChunkKV]:
        if self._entries is None:
            raise StoreError("the memory store is closed")
        return self._entries


def _private_copy(kv: ChunkKV) -> ChunkKV:
    """A copy of its own, so that an entry neither changes with nor keeps alive the batch it was cut from."""
    layers = []
    for index, layer in enumerate(kv.layers):
        keys, values = (tensor.detach().to("cpu", copy=True).contiguous() for tensor in (layer.keys, layer.values))
        if not (is_finite(keys) and is_finite(values)):
            raise ConfigError(f"layer {index}: the model computed NaN or Inf for a chunk; use another dtype (float32)")
        layers.append(LayerKV(keys, values))
    return ChunkKV(kv.token_ids, tuple(layers))
