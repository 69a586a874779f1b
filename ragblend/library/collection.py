"""Collections: texts with ids, metadata and vectors of their user's own, beside the library's documents.

A vector store of another framework keeps its records here. The caller embeds; the library stores and
searches. KV is no part of it: ``Library.precompute`` and ``forget`` see to that, by text.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ragblend.config import require
from ragblend.errors import ConfigError
from ragblend.store.catalogue import Catalogue

Matrix = npt.NDArray[np.float32]
Where = Callable[["Item"], bool]

_COLUMNS = "SELECT item, text, vector, metadata, owner, payload FROM items WHERE collection = ?"
_PAGE = 512


@dataclass(frozen=True, slots=True)
class Item:
    """A record. Adding one under an id that is there replaces it.

    vector: of any length, the same in the whole collection. metadata: what JSON can hold.
    owner: what the item is a part of, by which it can be deleted. payload: text kept for the caller.
    """

    id: str
    text: str
    vector: tuple[float, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    owner: str = ""
    payload: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """An item and the cosine of the angle between its vector and the one searched for."""

    item: Item
    score: float


class Collection:
    """The items of one name in one namespace; ``Library.collection`` makes it. Safe to share between threads.

    Every method sees what other processes have committed. ``writing`` guards each change.
    """

    def __init__(
        self, catalogue: Catalogue, namespace: str, name: str, writing: Callable[[], AbstractContextManager[None]]
    ) -> None:
        require(bool(name), "the collection's name is empty: give it one")
        self.name = name
        self._catalogue = catalogue
        self._key = json.dumps([namespace, name])
        self._writing = writing
        self._lock = threading.Lock()
        self._vectors = _Vectors("", (), np.empty((0, 0), np.float32))

    def __len__(self) -> int:
        return int(self._catalogue.rows("SELECT count(*) FROM items WHERE collection = ?", self._key)[0][0])

    def add(self, items: Iterable[Item]) -> None:
        """Add or replace ``items``, all or none. Raises ConfigError for a bad vector or metadata."""
        rows = [self._row(item) for item in items]
        sizes = {len(row[3]) for row in rows}
        if not rows:
            return
        with self._writing(), self._catalogue.transaction() as connection:
            sizes |= {
                size
                for (size,) in connection.execute(
                    "SELECT length(vector) FROM items WHERE collection = ? LIMIT 1", (self._key,)
                )
            }
            require(
                len(sizes) == 1,
                f"the vectors of collection {self.name!r} would have "
                f"{' and '.join(str(size // 4) for size in sorted(sizes))} dimensions: "
                "embed everything with the same model",
            )
            connection.executemany(
                "INSERT OR REPLACE INTO items (collection, item, text, vector, metadata, owner, payload)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                rows,
            )
            self._changed()

    def get(self, ids: Iterable[str]) -> list[Item]:
        """The items of these ids, in their order; ids that are not there are left out."""
        ids = list(ids)
        found = {
            item.id: item for first in range(0, len(ids), _PAGE) for item in self._by_ids(ids[first : first + _PAGE])
        }
        return [found[id] for id in ids if id in found]

    def items(self) -> Iterator[Item]:
        """All items in order of their ids, page by page."""
        last = ""
        while rows := self._catalogue.rows(f"{_COLUMNS} AND item > ? ORDER BY item LIMIT {_PAGE}", self._key, last):
            yield from map(_item, rows)
            last = rows[-1][0]

    def owned(self, owner: str) -> list[Item]:
        """The items of one owner, in order of their ids."""
        return [_item(row) for row in self._catalogue.rows(f"{_COLUMNS} AND owner = ? ORDER BY item", self._key, owner)]

    def holds_text(self, text: str) -> bool:
        """Whether any item has exactly this text."""
        return bool(
            self._catalogue.rows("SELECT 1 FROM items WHERE collection = ? AND text = ? LIMIT 1", self._key, text)
        )

    def delete(self, ids: Iterable[str]) -> int:
        """Delete the items of these ids. Returns how many there were."""
        wanted = [(self._key, id) for id in set(ids)]
        with self._writing(), self._catalogue.transaction() as connection:
            deleted = connection.executemany("DELETE FROM items WHERE collection = ? AND item = ?", wanted).rowcount
            self._changed()
        return max(0, deleted)

    def search(self, vector: Sequence[float], k: int, where: Where | None = None) -> list[Found]:
        """The ``k`` items (or all, if fewer) nearest by angle, best first, ties by id.

        where: only items for which it holds. Raises ConfigError for a vector of another length, or k below 1.
        """
        require(k >= 1, f"k must be at least 1, got {k}")
        while True:
            vectors = self._current()
            if not vectors.ids:
                return []
            scores = vectors.scores(_checked(vector), self.name)
            order = np.lexsort((np.arange(len(scores)), -scores))
            found = self._best(vectors, scores, order, k, where)
            if found is not None:
                return found

    def _best(
        self, vectors: _Vectors, scores: Matrix, order: npt.NDArray[np.int64], k: int, where: Where | None
    ) -> list[Found] | None:
        """The first ``k`` in ``order`` for which ``where`` holds; None if one of them is gone meanwhile."""
        best: list[Found] = []
        page = k if where is None else max(k, _PAGE)
        for first in range(0, len(order), page):
            rows = order[first : first + page].tolist()
            items = self.get(vectors.ids[row] for row in rows)
            if len(items) < len(rows):
                return None
            best += [
                Found(item, float(scores[row]))
                for row, item in zip(rows, items, strict=True)
                if where is None or where(item)
            ]
            if len(best) >= k:
                break
        return best[:k]

    def _current(self) -> _Vectors:
        """Ids and vectors as the catalogue has them now."""
        with self._lock, self._catalogue.lock:
            version = self._catalogue.setting(self._version_name) or ""
            if version != self._vectors.version:
                rows = self._catalogue.rows(
                    "SELECT item, vector FROM items WHERE collection = ? ORDER BY item", self._key
                )
                matrix = np.frombuffer(b"".join(row[1] for row in rows), np.float32).reshape(len(rows), -1)
                self._vectors = _Vectors(version, tuple(row[0] for row in rows), _unit(matrix))
            return self._vectors

    def _by_ids(self, ids: Sequence[str]) -> list[Item]:
        statement = f"{_COLUMNS} AND item IN (SELECT value FROM json_each(?))"
        return [_item(row) for row in self._catalogue.rows(statement, self._key, json.dumps(ids))]

    def _row(self, item: Item) -> tuple[Any, ...]:
        require(bool(item.id), "an item's id is empty")
        try:
            metadata = json.dumps(dict(item.metadata), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"the metadata of {item.id!r} cannot be kept as JSON: {error}") from error
        vector = _checked(item.vector).tobytes()
        return self._key, item.id, item.text, vector, metadata, item.owner, item.payload

    def _changed(self) -> None:
        with self._catalogue.transaction() as connection:
            connection.execute(
                "INSERT INTO settings (name, value) VALUES (?, '1')"
                " ON CONFLICT (name) DO UPDATE SET value = CAST(value AS INTEGER) + 1",
                (self._version_name,),
            )

    @property
    def _version_name(self) -> str:
        return f"collection:{self._key}"


@dataclass(frozen=True, slots=True)
class _Vectors:
    """What is searched: unit vectors [n, dimensions] under their ids, as of one version of the collection."""

    version: str
    ids: tuple[str, ...]
    matrix: Matrix

    def scores(self, vector: Matrix, name: str) -> Matrix:
        dimensions = self.matrix.shape[1]
        require(
            len(vector) == dimensions,
            f"collection {name!r} has vectors of {dimensions} dimensions, not {len(vector)}: use its embedding model",
        )
        # Rounded, so that equal vectors tie whatever the order of sums.
        rounded: Matrix = np.round(self.matrix @ _unit(vector[None])[0], 6)
        return rounded


def _checked(vector: Sequence[float]) -> Matrix:
    array = np.asarray(vector, np.float32)
    require(array.ndim == 1 and len(array) > 0, "a vector must be a non-empty sequence of numbers")
    require(bool(np.isfinite(array).all()), "a vector holds NaN or infinity")
    return array


def _unit(matrix: Matrix) -> Matrix:
    lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
    return np.divide(matrix, np.where(lengths == 0, 1, lengths), dtype=np.float32)


def _item(row: tuple[Any, ...]) -> Item:
    id, text, vector, metadata, owner, payload = row
    return Item(id, text, tuple(np.frombuffer(vector, np.float32).tolist()), json.loads(metadata), owner, payload)
