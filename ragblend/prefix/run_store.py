"""The files of runs, within the limits of their namespace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from sqlite3 import Connection

from ragblend.prefix.run import worth_of
from ragblend.store.base import EvictionReason
from ragblend.store.disk import DiskStore
from ragblend.store.eviction import Candidate
from ragblend.store.key import digest_fields
from ragblend.store.rows import is_sound
from ragblend.store.tiers import TieredStore


def run_namespace(namespace: str) -> str:
    """The namespace of the store that holds a namespace's runs: no other name is likely to be this one."""
    return digest_fields("prefix cache", namespace)


class RunStore(DiskStore):
    """Runs beside the chunk KV of the namespace ``of``, encrypted as that is, and within its limits.

    The two are one pool: room for the one is made by evicting what is worth least of both. A run expires by its own
    time to live, and not by that of the limits. clock: seconds since the epoch, by which runs are used.

    forget_runs: deletes the rows of runs that are evicted, as part of the transaction; their shelf gives it.
    """

    def __init__(self, of: TieredStore, clock: Callable[[], float]) -> None:
        super().__init__(of.root, of.catalogue, run_namespace(of.namespace), of.files, beside=of, cipher=of.cipher)
        self.of = of
        self.forget_runs: Callable[[Connection, Sequence[str]], None] | None = None
        self._clock = clock

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold what a file may be written under: where there are limits, the library's writer lock, since only who
        holds it knows how much there is. Raises LibraryBusyError.
        """
        with self.of.exclusive() if self.room.limits.any else contextlib.nullcontext():
            yield

    def candidates(self) -> list[Candidate]:
        now, pinned = self._clock(), self.pins()
        rows = self._rows(
            "SELECT entries.key, used_at, ttl_s, start FROM entries"
            f" LEFT JOIN prefix_runs ON prefix_runs.key = entries.key AND {is_sound('prefix_runs')}"
            " WHERE entries.namespace = ?",
            self.namespace,
        )
        return [
            worth_of(key, self.last_use(key)[1], used_at, ttl_s, start or 0, now)
            for key, used_at, ttl_s, start in rows
            if key not in pinned
        ]

    def expired(self) -> list[str]:
        rows = self._rows(
            f"SELECT key FROM prefix_runs WHERE namespace = ? AND used_at + ttl_s <= ? AND {is_sound('prefix_runs')}",
            self.of.namespace,
            self._clock(),
        )
        return [key for (key,) in rows]

    def evict(self, keys: Sequence[str], reason: EvictionReason) -> None:
        if not keys:
            return
        with self.catalogue.transaction() as connection:
            super().evict(keys, reason)
            self._delete_rows(connection, ["evictions"], keys)  # nobody looks for an evicted run
            if self.forget_runs is not None:
                self.forget_runs(connection, keys)

    def _is_expired(self, used_at: float) -> bool:  # noqa: ARG002 (runs expire by their rows)
        return False
