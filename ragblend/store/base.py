"""The shape of chunk KV and of the stores that keep it. Nothing here knows a model."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from ragblend.kernels.layout import LayerKV
from ragblend.kernels.quantise import rows_of
from ragblend.store.codecs import StoreCodec

MissCause = Literal["missing", "corrupt", "stale", "alloc", "expired", "remote"]
"""Why an entry was not served: not there, damaged, whole but not what was asked for, no memory or file
handle left to read it with, not used for its time to live, or a remote tier that failed."""

EvictionReason = Literal["budget", "expired"]


@dataclass(frozen=True, slots=True)
class ChunkKV:
    """Per-layer canonical keys and values of one chunk's own rows, in layer order.

    seconds: what computing it took, 0 if that is not known; it tells what evicting it would cost.
    """

    token_ids: tuple[int, ...]
    layers: tuple[LayerKV, ...]
    seconds: float = 0.0

    def first(self, tokens: int) -> ChunkKV:
        """The KV of the first ``tokens`` rows, on the same memory."""
        return ChunkKV(self.token_ids[:tokens], tuple(rows_of(layer, slice(tokens)) for layer in self.layers))

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)


class KVReader(Protocol):
    """An open entry, already checked against the expected token ids; reads one layer at a time.

    Layers may be read from several threads at once. Close it when done, also after an error.
    """

    @property
    def tokens(self) -> int: ...

    @property
    def layer_count(self) -> int: ...

    def layer(self, index: int) -> LayerKV:
        """Read one layer, to be read only by the caller. What is kept in fewer bits is handed out so.

        Raises EntryError (CorruptEntryError when the bytes are not what was written); tell the store
        with ``discard`` and the error's cause, and compute the chunk instead.
        """
        ...

    def close(self) -> None: ...


class WrappedReader:
    """A reader around another one. What derives from it changes what it has to."""

    def __init__(self, reader: KVReader) -> None:
        self._reader = reader

    @property
    def tokens(self) -> int:
        return self._reader.tokens

    @property
    def layer_count(self) -> int:
        return self._reader.layer_count

    def layer(self, index: int) -> LayerKV:
        return self._reader.layer(index)

    def close(self) -> None:
        self._reader.close()


def read_whole(reader: KVReader, token_ids: tuple[int, ...]) -> ChunkKV:
    """All layers of an open entry of ``token_ids``. Raises EntryError."""
    return ChunkKV(token_ids, tuple(reader.layer(index) for index in range(reader.layer_count)))


class StoreEvents:
    """What stores tell of their work. This one ignores it; ``metrics.StoreMetrics`` counts it.

    Nothing told here holds a word of a document: tiers, causes, bytes and seconds.
    """

    def hit(self, tier: str) -> None:
        """An entry was opened."""

    def miss(self, tier: str, cause: MissCause) -> None:
        """An entry was not served, or given up while it was read."""

    def loaded(self, tier: str, nbytes: int, seconds: float) -> None:
        """An entry that was opened is closed: what was read of it, and how long reading took."""

    def computed(self, seconds: float) -> None:
        """An entry was put that took so long to compute."""

    def evicted(self, tier: str, reason: EvictionReason, entries: int, nbytes: int) -> None:
        """Entries were dropped to keep a limit."""

    def answered(self, load_s: float, recompute_s: float) -> None:
        """An answer is complete: seconds of reading all its chunk KV, and of computing rows before its first token."""

    def watch(self, store: KVStore) -> None:
        """A store is open whose bytes may be asked for."""

    def remote(self, operation: str, outcome: str) -> None:
        """An operation on a remote tier ended: ``ok``, ``retry`` or ``failed``."""


class KVStore(ABC):
    """Chunk KV by key. A key (see ``key.entry_key``) already carries the namespace.

    Any doubt about an entry is a miss, never an error: ``open`` returns None for it. ``misses``
    counts them by cause. Stores are safe to share between threads.

    codec: what entries that are put are kept as, one of ``config.CODECS``. Keys should hold it too, so that a store
    which is shared never gives an entry of another one.

    An entry with an open reader is pinned: a store that evicts leaves it alone. ``ragblend.testing``
    has the tests that every store passes.
    """

    tier: ClassVar[str] = "store"

    def __init__(self, events: StoreEvents | None = None, codec: str = "raw") -> None:
        self.events = events or StoreEvents()
        self.codec = StoreCodec.named(codec)
        self.misses: Counter[MissCause] = Counter()
        self._pins: Counter[str] = Counter()
        self._counting = threading.Lock()

    @abstractmethod
    def contains(self, key: str) -> bool:
        """Whether an entry is recorded under ``key`` (its bytes are checked when it is opened)."""

    @abstractmethod
    def put(self, key: str, kv: ChunkKV) -> int:
        """Write ``kv`` durably and return its bytes; an existing entry is left as it is.

        Raises StoreFullError, StoreError; ConfigError for NaN or Inf, which are never stored.
        """

    def open(self, key: str, token_ids: tuple[int, ...]) -> KVReader | None:
        """Open an entry for reading, or None on a miss (absent, damaged, or of other token ids)."""
        self._pin(key)
        reader = None
        try:
            reader = self._open(key, token_ids)
        finally:
            if reader is None:
                self._unpin(key)
        if reader is None:
            return None
        self.events.hit(self.tier)
        return _PinnedReader(reader, self, key)

    @abstractmethod
    def _open(self, key: str, token_ids: tuple[int, ...]) -> KVReader | None:
        """As ``open``, which pins the key and tells of hits. A miss is counted here, with its cause."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an entry; a key that is absent is no error."""

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of all entries."""

    def obtain(self, key: str, token_ids: tuple[int, ...]) -> bool:  # noqa: ARG002 (what there is to fetch is checked)
        """Whether the entry is in this store; one with a slower store behind it fetches it from there."""
        return self.contains(key)

    def discard(self, key: str, cause: MissCause = "corrupt") -> None:
        """Count a miss, and give up the entry, so that it is computed and put anew.

        An entry that there was only no memory for (``alloc``) is kept.
        """
        self.count_miss(cause)
        if cause != "alloc":
            self.delete(key)

    def count_miss(self, cause: MissCause) -> None:
        with self._counting:
            self.misses[cause] += 1
        self.events.miss(self.tier, cause)

    @contextmanager
    def pinned(self, keys: Iterable[str]) -> Iterator[None]:
        """Keep entries from being evicted for the block."""
        keys = list(keys)
        for key in keys:
            self._pin(key)
        try:
            yield
        finally:
            for key in keys:
                self._unpin(key)

    def pins(self) -> set[str]:
        """Keys that may not be evicted now."""
        with self._counting:
            return set(self._pins)

    def _pin(self, key: str) -> None:
        with self._counting:
            self._pins[key] += 1

    def _unpin(self, key: str) -> None:
        with self._counting:
            self._pins[key] -= 1
            if not self._pins[key]:
                del self._pins[key]

    @abstractmethod
    def close(self) -> None:
        """Release what the store holds. Using it afterwards raises StoreError."""


class _PinnedReader(WrappedReader):
    """A store's reader: keeps its entry pinned, and tells on closing what was read."""

    def __init__(self, reader: KVReader, store: KVStore, key: str) -> None:
        super().__init__(reader)
        self._store = store
        self._key = key
        self._nbytes = 0
        self._seconds = 0.0
        self._lock = threading.Lock()
        self._closed = False

    def layer(self, index: int) -> LayerKV:
        began = time.perf_counter()
        layer = super().layer(index)
        seconds = time.perf_counter() - began
        with self._lock:
            self._seconds += seconds
            self._nbytes += layer.nbytes
        return layer

    def close(self) -> None:
        super().close()
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._store._unpin(self._key)
        self._store.events.loaded(self._store.tier, self._nbytes, self._seconds)
