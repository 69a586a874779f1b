"""The shape of chunk KV and of the stores that keep it. Nothing here knows a model."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

MissCause = Literal["missing", "corrupt", "stale", "alloc"]
"""Why an entry was not served: not there, damaged, whole but not what was asked for, or no memory
or file handle left to read it with."""


@dataclass(frozen=True, slots=True)
class LayerKV:
    """One layer of one chunk: canonical keys and values, each [kv_heads, tokens, head_dim]."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class ChunkKV:
    """Per-layer canonical keys and values of one chunk's own rows, in layer order."""

    token_ids: tuple[int, ...]
    layers: tuple[LayerKV, ...]

    def first(self, tokens: int) -> ChunkKV:
        """The KV of the first ``tokens`` rows, on the same memory."""
        layers = (LayerKV(layer.keys[:, :tokens], layer.values[:, :tokens]) for layer in self.layers)
        return ChunkKV(self.token_ids[:tokens], tuple(layers))

    @property
    def nbytes(self) -> int:
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)


class KVReader(Protocol):
    """An open entry, already checked against the expected token ids; reads one layer at a time.

    Layers may be read from several threads at once. Close it when done, also after an error.
    """

    @property
    def tokens(self) -> int: ...

    @property
    def layer_count(self) -> int: ...

    def layer(self, index: int) -> LayerKV:
        """Read one layer, to be read only by the caller.

        Raises EntryError (CorruptEntryError when the bytes are not what was written); tell the store
        with ``discard`` and the error's cause, and compute the chunk instead.
        """
        ...

    def close(self) -> None: ...


class KVStore(ABC):
    """Chunk KV by key. A key (see ``key.entry_key``) already carries the namespace.

    Any doubt about an entry is a miss, never an error: ``open`` returns None for it. ``misses``
    counts them by cause. Stores are safe to share between threads.
    """

    def __init__(self) -> None:
        self.misses: Counter[MissCause] = Counter()
        self._misses_lock = threading.Lock()

    @abstractmethod
    def contains(self, key: str) -> bool:
        """Whether an entry is recorded under ``key`` (its bytes are checked when it is opened)."""

    @abstractmethod
    def put(self, key: str, kv: ChunkKV) -> int:
        """Write ``kv`` durably and return its bytes; an existing entry is left as it is.

        Raises StoreFullError, StoreError; ConfigError for NaN or Inf, which are never stored.
        """

    @abstractmethod
    def open(self, key: str, token_ids: tuple[int, ...]) -> KVReader | None:
        """Open an entry for reading, or None on a miss (absent, damaged, or of other token ids)."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove an entry; a key that is absent is no error."""

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of all entries."""

    def discard(self, key: str, cause: MissCause = "corrupt") -> None:
        """Count a miss, and give up the entry, so that it is computed and put anew.

        An entry that there was only no memory for (``alloc``) is kept.
        """
        self.count_miss(cause)
        if cause != "alloc":
            self.delete(key)

    def count_miss(self, cause: MissCause) -> None:
        with self._misses_lock:
            self.misses[cause] += 1

    @abstractmethod
    def close(self) -> None:
        """Release what the store holds. Using it afterwards raises StoreError."""
