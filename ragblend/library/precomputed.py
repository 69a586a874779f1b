"""Texts that have KV without being in a document: the SQL of one namespace."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ragblend.library.index import Ids
from ragblend.library.records import HAS_CONTEXT, changing
from ragblend.store.catalogue import Catalogue
from ragblend.store.key import digest_fields, token_bytes, token_ids_of
from ragblend.store.row_values import AS_THEY_ARE, RowValues


@dataclass(frozen=True, slots=True)
class Text:
    """A text, the ids that it has as a chunk of a prompt, and the key of their KV.

    context_ids: what takes the preamble's place before it, for a text whose KV is to be computed for the first time.
    """

    text: str
    token_ids: tuple[int, ...]
    entry_key: str
    context_ids: tuple[int, ...] = ()


class PrecomputedTexts:
    """Every change bumps ``version``. Ids are never used twice, and a row never changes.

    values: how the rows' values are stored.
    """

    def __init__(self, catalogue: Catalogue, namespace: str, values: RowValues = AS_THEY_ARE) -> None:
        self.catalogue = catalogue
        self.namespace = namespace
        self._values = values

    def version(self) -> int:
        return self.catalogue.counter(self._version_name)

    def count(self) -> int:
        [(count,)] = self.catalogue.rows("SELECT count(*) FROM precomputed WHERE namespace = ?", self.namespace)
        return int(count)

    def key_of(self, text: str) -> str | None:
        """The key of a text's KV, None for one that is not there."""
        source = "FROM precomputed WHERE namespace = ? AND digest = ?"
        found = self.catalogue.sound_rows(["precomputed"], "entry_key", source, self.namespace, self._digest(text))
        return str(found[0][0]) if found else None

    def add(self, text: Text) -> None:
        """Add a text, as part of the caller's transaction if there is one; one that is there stays as it is."""
        seal = self._values.seal
        with changing(self.catalogue, self._version_name) as connection:
            id = self.catalogue.next_id("precomputed")
            connection.execute(
                "INSERT OR IGNORE INTO precomputed (id, namespace, digest, text, token_ids, entry_key, added_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    id,
                    self.namespace,
                    self._digest(text.text),
                    seal("precomputed.text", id, text.text),
                    seal("precomputed.token_ids", id, token_bytes(text.token_ids)),
                    text.entry_key,
                    time.time(),
                ),
            )

    def remove(self, texts: Iterable[str]) -> list[str]:
        """Remove texts in one transaction. Returns the keys of those that were there, one for each."""
        with changing(self.catalogue, self._version_name) as connection:
            found = [
                connection.execute(
                    "DELETE FROM precomputed WHERE namespace = ? AND digest = ? RETURNING entry_key",
                    (self.namespace, self._digest(text)),
                ).fetchall()
                for text in texts
            ]
        return [key for rows in found for (key,) in rows]

    def clear(self) -> None:
        """Remove all texts."""
        with changing(self.catalogue, self._version_name) as connection:
            connection.execute("DELETE FROM precomputed WHERE namespace = ?", (self.namespace,))

    def ids(self) -> Ids:
        """Ids of all texts, ascending."""
        rows = self.catalogue.rows("SELECT id FROM precomputed WHERE namespace = ? ORDER BY id", self.namespace)
        return np.fromiter((row[0] for row in rows), np.int64, len(rows))

    def prompt_texts(self, ids: Ids) -> Iterator[tuple[int, str]]:
        """Just the texts, by id; those that are gone are left out."""
        rows = self.catalogue.rows(
            "SELECT id, text FROM precomputed WHERE namespace = ? AND id IN (SELECT value FROM json_each(?))",
            self.namespace,
            json.dumps(ids.tolist()),
        )
        for id, text in rows:
            yield id, self._values.open("precomputed.text", id, text)

    def read(self, ids: Ids) -> Iterator[tuple[int, Text, bool]]:
        """Texts by their ids, and whether each was prefilled behind a context; those that are gone are left out."""
        rows = self.catalogue.sound_rows(
            ["precomputed"],
            f"id, text, token_ids, entry_key, {HAS_CONTEXT.format(table='precomputed')}",
            "FROM precomputed WHERE namespace = ? AND id IN (SELECT value FROM json_each(?))",
            self.namespace,
            json.dumps(ids.tolist()),
        )
        for id, text, data, key, in_context in rows:
            token_ids = token_ids_of(self._values.open("precomputed.token_ids", id, data))
            yield id, Text(self._values.open("precomputed.text", id, text), token_ids, key), bool(in_context)

    def _digest(self, text: str) -> str:
        return self._values.name("precomputed.digest", digest_fields(text))

    @property
    def _version_name(self) -> str:
        return f"texts:{self.namespace}"
