"""Chunk KV in this process's memory, within a byte budget."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ragblend.config import require
from ragblend.errors import StoreError, StoreFullError
from ragblend.kernels.layout import LayerKV
from ragblend.store.base import ChunkKV, EvictionReason, KVStore, MissCause, StoreEvents
from ragblend.store.eviction import Candidate, victims


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


class EntryOwner(Protocol):
    """Whoever keeps entries of another kind beside the chunks, and says what they are worth and when they expire."""

    def candidates(self, sizes: Mapping[str, int]) -> Iterable[Candidate]:
        """Which of its entries, given with their bytes, may be evicted. Must not call the store, which is locked."""
        ...


@dataclass(slots=True)
class _Held:
    kv: ChunkKV
    used_at: float
    owner: EntryOwner | None


class MemoryStore(KVStore):
    """Keeps copies of entries on the CPU, and evicts those that are worth least over ``budget_bytes``.

    low_watermark: share of the budget down to which eviction goes. ttl_s: seconds after its last use at which an
    entry expires, None for never. page_locked: in memory that a GPU copies from by itself; the system cannot swap it
    out. clock: any seconds.

    Entries keep their tensors' types, and what is compact stays so. An entry for which those in use leave no room, or
    for which there is no memory, raises StoreFullError. Chunks share the budget with entries of owners, in one order of
    eviction.
    """

    tier = "memory"

    def __init__(
        self,
        budget_bytes: int,
        *,
        low_watermark: float = 1.0,
        ttl_s: float | None = None,
        codec: str = "raw",
        page_locked: bool = False,
        events: StoreEvents | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(events, codec)
        require(budget_bytes > 0, f"the {self.tier} budget must be positive, got {budget_bytes} bytes")
        require(not page_locked or torch.cuda.is_available(), "memory is page-locked for a GPU, and there is none")
        require(0.0 < low_watermark <= 1.0, f"the low watermark must be above 0 and at most 1, got {low_watermark}")
        require(ttl_s is None or ttl_s > 0, f"the time to live must be positive, got {ttl_s} seconds")
        self.budget_bytes = budget_bytes
        self.low_watermark = low_watermark
        self.ttl_s = ttl_s
        self.page_locked = page_locked
        self._clock = clock
        self._entries: dict[str, _Held] | None = {}
        self._nbytes = 0
        self._lock = threading.Lock()
        self.events.watch(self)

    def contains(self, key: str) -> bool:
        with self._lock:
            return key in self._opened()

    def put(self, key: str, kv: ChunkKV) -> int:
        layers = [self.codec.compact(layer, f"layer {index}") for index, layer in enumerate(kv.layers)]
        return self._insert(key, replace(kv, layers=tuple(layers)), copy=True)

    def keep(self, key: str, kv: ChunkKV, owner: EntryOwner | None = None) -> int:
        """As ``put``, for KV that another store has read and checked and that nobody writes to.

        It stays in the codec that it has, and is not copied if it lies in the right memory already. owner: whose it
        is, if it is no chunk.
        """
        return self._insert(key, kv, copy=False, owner=owner)

    def _open(self, key: str, token_ids: tuple[int, ...]) -> MemoryReader | None:
        cause: MissCause = "missing"
        with self._lock:
            held = self._opened().get(key)
            now = self._clock()
            if held is not None and self._is_expired(held, now):
                cause = "expired"
            elif held is not None and held.kv.token_ids != token_ids:
                cause = "stale"
            elif held is not None:
                held.used_at = now
                return MemoryReader(held.kv)
        self.count_miss(cause)
        return None

    def delete(self, key: str) -> None:
        with self._lock:
            self._drop(self._opened(), key)

    def nbytes(self) -> int:
        with self._lock:
            self._opened()
            return self._nbytes

    def close(self) -> None:
        with self._lock:
            self._entries = None

    def _insert(self, key: str, kv: ChunkKV, *, copy: bool, owner: EntryOwner | None = None) -> int:
        with self._lock:
            existing = self._opened().get(key)
        if existing is not None:
            return existing.kv.nbytes
        if kv.nbytes > self.budget_bytes:
            raise StoreFullError(
                f"an entry of {kv.nbytes:,} bytes exceeds the {self.tier} budget of {self.budget_bytes:,}"
            )
        try:
            own = replace(kv, layers=tuple(layer.map(lambda part: self._hold(part, copy)) for layer in kv.layers))
        except RuntimeError as error:  # torch's way to say that there is no memory
            raise StoreFullError(f"no memory for an entry of {kv.nbytes:,} bytes in the {self.tier} tier") from error
        with self._lock:
            entries = self._opened()
            if key not in entries:
                self._make_room(entries, own.nbytes)
                entries[key] = _Held(own, self._clock(), owner)
                self._nbytes += own.nbytes
        return own.nbytes

    def _hold(self, tensor: Tensor, copy: bool) -> Tensor:
        """The tensor in this store's memory. A copy neither changes with nor keeps alive what it was cut from."""
        if self.page_locked:
            return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor.detach())
        return tensor.detach().to("cpu", copy=copy).contiguous()

    def _make_room(self, entries: dict[str, _Held], nbytes: int) -> None:
        """Evict what has expired, and, over the budget, what is worth least. Raises StoreFullError."""
        if self.ttl_s is None and self._nbytes + nbytes <= self.budget_bytes:
            return
        candidates = self._candidates(entries)
        now = self._clock()
        expired = [candidate for candidate in candidates if self._is_expired(entries[candidate.key], now)]
        self._evict(entries, expired, "expired")
        candidates = [candidate for candidate in candidates if candidate.key in entries]
        if self._nbytes + nbytes <= self.budget_bytes:
            return
        if self._nbytes - sum(candidate.nbytes for candidate in candidates) + nbytes > self.budget_bytes:
            raise StoreFullError(f"entries in use leave no room for {nbytes:,} bytes in the {self.tier} budget")
        wanted = self._nbytes + nbytes - int(self.low_watermark * self.budget_bytes)
        self._evict(entries, victims(candidates, wanted), "budget")

    def _candidates(self, entries: Mapping[str, _Held]) -> list[Candidate]:
        """Everything that nobody reads."""
        now, pinned = self._clock(), self.pins()
        found: list[Candidate] = []
        owned: dict[EntryOwner, dict[str, int]] = {}
        for key, held in entries.items():
            if key in pinned:
                continue
            if held.owner is None:
                found.append(Candidate(key, held.kv.nbytes, held.kv.seconds, now - held.used_at))
            else:
                owned.setdefault(held.owner, {})[key] = held.kv.nbytes
        for owner, sizes in owned.items():
            found += owner.candidates(sizes)
        return found

    def _is_expired(self, held: _Held, now: float) -> bool:
        return held.owner is None and self.ttl_s is not None and now - held.used_at > self.ttl_s

    def _evict(self, entries: dict[str, _Held], chosen: Sequence[Candidate], reason: EvictionReason) -> None:
        for candidate in chosen:
            self._drop(entries, candidate.key)
        if chosen:
            self.events.evicted(self.tier, reason, len(chosen), sum(candidate.nbytes for candidate in chosen))

    def _drop(self, entries: dict[str, _Held], key: str) -> None:
        held = entries.pop(key, None)
        if held is not None:
            self._nbytes -= held.kv.nbytes

    def _opened(self) -> dict[str, _Held]:
        if self._entries is None:
            raise StoreError(f"the {self.tier} store is closed")
        return self._entries
