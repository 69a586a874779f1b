"""What a remote tier has yet to be told, in the catalogue, so that it outlives the process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from ragblend.store.catalogue import Catalogue

Operation = Literal["upload", "delete"]


class Outbox:
    """Keys of one namespace, each with the last thing that happened to it."""

    def __init__(self, catalogue: Catalogue, namespace: str) -> None:
        self.catalogue = catalogue
        self.namespace = namespace

    def add(self, operation: Operation, keys: Iterable[str]) -> None:
        """Note what is to be done, as part of the caller's transaction if there is one."""
        with self.catalogue.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO outbox (key, namespace, operation) VALUES (?, ?, ?)",
                [(key, self.namespace, operation) for key in keys],
            )

    def pending(self, limit: int) -> list[tuple[str, Operation]]:
        return [
            (key, operation)
            for key, operation in self.catalogue.rows(
                "SELECT key, operation FROM outbox WHERE namespace = ? LIMIT ?", self.namespace, limit
            )
        ]

    def is_deleted(self, key: str) -> bool:
        """Whether an entry is deleted here, and the remote tier does not know yet."""
        statement = "SELECT 1 FROM outbox WHERE key = ? AND operation = 'delete'"
        return bool(self.catalogue.rows(statement, key))

    def done(self, items: Iterable[tuple[str, Operation]]) -> None:
        """Cross out what has been done, unless something else has happened to the key since."""
        with self.catalogue.transaction() as connection:
            connection.executemany("DELETE FROM outbox WHERE key = ? AND operation = ?", list(items))

    def count(self) -> int:
        [(count,)] = self.catalogue.rows("SELECT count(*) FROM outbox WHERE namespace = ?", self.namespace)
        return int(count)
