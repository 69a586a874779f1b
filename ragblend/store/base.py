"""The shape of chunk KV and of the stores that keep it. Nothing here knows a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


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

    @property
    def nbytes(self) -> int:
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)


class KVReader(Protocol):
    """An open entry, already checked against the expected token ids; reads one layer at a time."""

    @property
    def tokens(self) -> int: ...

    @property
    def layer_count(self) -> int: ...

    def layer(self, index: int) -> LayerKV:
        """Read one layer. Raises CorruptEntryError when the bytes are not what was written."""
        ...

    def close(self) -> None: ...


class KVStore(ABC):
    """Chunk KV by key. A key (see ``key.entry_key``) already carries the namespace.

    Any doubt about an entry is a miss, never an error: ``open`` returns None for it.
    """

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

    def close(self) -> None:
        """Release what the store holds. Using it afterwards raises StoreError."""
