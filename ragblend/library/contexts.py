"""What texts that a program gave were prefilled behind: the SQL of one namespace."""

from __future__ import annotations

from collections.abc import Iterable

from ragblend.store.catalogue import Catalogue
from ragblend.store.key import token_bytes, token_ids_of
from ragblend.store.row_values import RowValues


class Contexts:
    """Token ids by the key of the entry, for entries that did not stand alone. The ids themselves, so that it does
    not matter what becomes of the texts that they were of. A row goes when nobody needs its entry any more.

    values: how the rows' values are stored.
    """

    def __init__(self, catalogue: Catalogue, namespace: str, values: RowValues) -> None:
        self._catalogue = catalogue
        self._namespace = namespace
        self._values = values

    def of(self, key: str) -> tuple[int, ...]:
        """What an entry was prefilled behind; nothing if it stood alone, or is of a file."""
        statement = "FROM contexts WHERE entry_key = ?"
        for (data,) in self._catalogue.sound_rows(["contexts"], "token_ids", statement, key):
            return token_ids_of(self._values.open("contexts.token_ids", key, data))
        return ()

    def put(self, key: str, context_ids: tuple[int, ...]) -> None:
        """Write down what an entry is prefilled behind, as part of the caller's transaction if there is one."""
        if context_ids:
            sealed = self._values.seal("contexts.token_ids", key, token_bytes(context_ids))
            with self._catalogue.transaction() as connection:
                connection.execute(
                    "INSERT OR IGNORE INTO contexts (entry_key, namespace, token_ids) VALUES (?, ?, ?)",
                    (key, self._namespace, sealed),
                )

    def remove(self, keys: Iterable[str]) -> None:
        """Forget what entries were prefilled behind, as part of the caller's transaction if there is one."""
        with self._catalogue.transaction() as connection:
            connection.executemany("DELETE FROM contexts WHERE entry_key = ?", [(key,) for key in keys])

    def clear(self) -> None:
        """Forget everything."""
        with self._catalogue.transaction() as connection:
            connection.execute("DELETE FROM contexts WHERE namespace = ?", (self._namespace,))
