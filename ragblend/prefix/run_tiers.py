"""Where a prefix cache's runs are: in memory and on disk, within its share of both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from ragblend.config import PrefixSettings
from ragblend.errors import StoreFullError
from ragblend.prefix.index import Index
from ragblend.prefix.run import Run
from ragblend.prefix.shelf import Shelf, file_bytes
from ragblend.store.base import ChunkKV, KVReader
from ragblend.store.eviction import Candidate, victims
from ragblend.store.memory import MemoryStore


class RunTiers:
    """The tiers of one prefix cache, whose lock is held in every call but those of ``open`` and ``candidates``.

    memory: None for none. It and the shelf's disk may be shared with chunk KV, which then makes room for runs as runs
    make room for it; beyond that, runs take no more than ``settings`` say. evicted: how often a run lost its place.
    """

    def __init__(
        self,
        index: Index,
        settings: PrefixSettings,
        clock: Callable[[], float],
        lock: threading.RLock,
        memory: MemoryStore | None,
        shelf: Shelf | None,
    ) -> None:
        self.memory = memory
        self.shelf = shelf
        self.evicted = 0
        self._index = index
        self._settings = settings
        self._clock = clock
        self._lock = lock

    def is_readable(self, run: Run) -> bool:
        return run.on_disk or (self.memory is not None and self.memory.contains(run.key))

    def open(self, run: Run) -> KVReader | None:
        """A run's KV, keys as they stand; None if it cannot be read."""
        reader = None
        if self.memory is not None and self.memory.contains(run.key):
            reader = self.memory.open(run.key, run.token_ids)
        if reader is None and self.shelf is not None and run.on_disk:
            reader = self.shelf.open(run)
        return reader

    def put(self, run: Run, kv: ChunkKV, held: Sequence[Run]) -> bool:
        """Keep a new run where there is room; False if there is none. held: runs that must not make room for it."""
        self._index.add(run)
        self.put_in_memory(run, kv)
        if self.shelf is not None:
            self._put_on_shelf(self.shelf, run, kv, [other.key for other in held])
        return self._remove_if_gone(run)

    def put_in_memory(self, run: Run, kv: ChunkKV) -> None:
        if self.memory is None or not self._has_room(
            kv.nbytes, self._settings.memory_bytes, lambda run: run.memory_bytes, self._give_up_memory
        ):
            return
        with suppress(StoreFullError):  # what is in use leaves no room
            self.memory.keep(run.key, kv, self)
            run.memory_bytes = kv.nbytes

    def let_go(self, run: Run) -> None:
        """Out of index and memory. A request that is reading it goes on reading."""
        self._give_up_memory(run)
        self._index.remove(run)

    def drop(self, runs: Sequence[Run]) -> None:
        """Out of index, memory and disk."""
        for run in runs:
            self.let_go(run)
        if runs and self.shelf is not None:
            self.shelf.delete(runs)

    def sweep(self) -> None:
        """Notice what was evicted to make room for others."""
        for key in self._evicted_from_disk():
            run = self._index.get(key)
            if run is not None and run.on_disk:
                run.disk_bytes, run.on_disk = 0, False
                self._lost(run)
        for run in self._index:
            if run.memory_bytes and self.memory is not None and not self.memory.contains(run.key):
                run.memory_bytes = 0
                self._lost(run)

    def candidates(self, sizes: Mapping[str, int]) -> list[Candidate]:
        """What of the memory may be evicted (the store's EntryOwner). Takes no lock: the store holds its own."""
        now = self._clock()
        found = []
        for key, nbytes in sizes.items():
            run = self._index.get(key)
            if run is None:
                found.append(Candidate(key, nbytes, 0.0, float("inf")))
            elif not run.pins:
                found.append(run.worth(nbytes, now))
        return found

    def _put_on_shelf(self, shelf: Shelf, run: Run, kv: ChunkKV, held: Sequence[str]) -> None:
        """Queue a run to be written, and what makes room for it to be deleted before."""
        needed = file_bytes(kv)

        def done(nbytes: int) -> None:
            with self._lock:
                run.disk_bytes, run.on_disk = nbytes, nbytes > 0
                self._remove_if_gone(run)

        def give_up(other: Run) -> None:
            other.disk_bytes, other.on_disk = 0, False
            shelf.delete([other])

        if (
            not shelf.read_only
            and self._has_room(needed, self._settings.disk_bytes, lambda run: run.disk_bytes, give_up)
            and shelf.put(run, kv, held, done)
        ):
            run.disk_bytes = needed

    def _has_room(self, needed: int, limit: int, size: Callable[[Run], int], give_up: Callable[[Run], None]) -> bool:
        """Whether runs stay within ``limit`` with ``needed`` bytes more, once those that are worth least are given up.

        None is given up in vain.
        """
        over = sum(map(size, self._index)) + needed - limit
        if over <= 0:
            return True
        now = self._clock()
        idle = [run for run in self._index if size(run) and not run.pins]
        if needed > limit or sum(map(size, idle)) < over:
            return False
        for victim in victims([run.worth(size(run), now) for run in idle], over):
            run = self._index.get(victim.key)
            if run is not None:
                give_up(run)
                self._lost(run)
        return True

    def _give_up_memory(self, run: Run) -> None:
        if run.memory_bytes and self.memory is not None:
            self.memory.delete(run.key)
        run.memory_bytes = 0

    def _lost(self, run: Run) -> None:
        self.evicted += 1
        self._remove_if_gone(run)

    def _remove_if_gone(self, run: Run) -> bool:
        """Whether a run is still anywhere; if not, it leaves the index."""
        there = run.memory_bytes > 0 or run.disk_bytes > 0
        if not there:
            self._index.remove(run)
        return there

    def _evicted_from_disk(self) -> Iterator[str]:
        while self.shelf is not None and self.shelf.evicted:
            yield self.shelf.evicted.popleft()
