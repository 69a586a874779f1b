"""The prefix cache of one namespace: finds, keeps, evicts and forgets runs of blocks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Protocol

from ragblend.config import PrefixSettings
from ragblend.prefix.chain import chain_root
from ragblend.prefix.growth import Finished, Stretch, runs_of, stretches
from ragblend.prefix.index import Index, Sought
from ragblend.prefix.run import Path, Piece, Run, path_of
from ragblend.prefix.shelf import Shelf, file_bytes
from ragblend.prefix.statistics import CacheStatistics, Counters, HourlyUse, PrefixUse, total
from ragblend.store.base import ChunkKV, KVReader, MissCause
from ragblend.store.codecs import is_finite
from ragblend.store.key import token_bytes
from ragblend.store.memory import MemoryReader

_TOP = 10
Take = Callable[[int, tuple[int, ...]], ChunkKV]
"""Copies rows of a finished request: the first position, and the ids from there on."""
Limits = Sequence[tuple[int, float]]
"""Lengths of a prompt's beginning, and the seconds that it outlives its last use."""


class Owners(Protocol):
    """Who needs the chunks that prefixes were built on. Every change bumps ``version``."""

    def version(self) -> int: ...

    def known(self, keys: Collection[str]) -> set[str]:
        """Those of ``keys`` that a document or a text has."""
        ...


class PrefixCache:
    """Safe to share between threads. All bytes of memory are counted, never more than the budget.

    model: a digest of everything that the model's KV depends on. clock: seconds since the epoch. shelf:
    keeps runs on disk. owners: by which prefixes over removed documents are noticed.
    """

    def __init__(
        self,
        namespace: str,
        model: str,
        settings: PrefixSettings,
        clock: Callable[[], float],
        shelf: Shelf | None = None,
        owners: Owners | None = None,
    ) -> None:
        self.namespace = namespace
        self.settings = settings
        self.clock = clock
        self._shelf = shelf
        self._owners = owners
        self._seen = (-1, -1)  # versions of owners and shelf
        key_namespace = shelf.key_namespace if shelf else namespace
        self._index = Index(chain_root(key_namespace, model, settings.block_tokens), settings.block_tokens)
        self._lock = threading.RLock()
        self._order = 0
        self._memory_bytes = 0
        self._evicted = self._expired = 0
        self._next_expiry = float("inf")
        self._closed = False
        self._counters = Counters(shelf.hours() if shelf else ())

    @property
    def nothing(self) -> Path:
        """The path of no blocks."""
        return path_of((), self._index.root)

    def find(self, sought: Sought, longer_than: int = 0) -> Path:
        """The longest kept beginning of a prompt if it has more than so many tokens, held until ``release``."""
        with self._lock:
            self._bring_up_to_date()
            path = self._index.longest(sought, self.clock())
            if path.turns >= self.settings.max_turns:
                path = path.exact()
            if path.tokens <= longer_than:
                return self.nothing
            self._use(path)
            for piece in path:
                piece.run.pins += 1
            return path

    def release(self, path: Iterable[Piece]) -> None:
        with self._lock:
            for piece in path:
                piece.run.pins -= 1

    def open(self, run: Run) -> KVReader | None:
        """A run's KV, keys as they stand; None, and the run is dropped, if it cannot be read."""
        with self._lock:
            kv = run.kv
        if kv is not None:
            return MemoryReader(kv)
        reader = self._shelf.open(run) if self._shelf and run.on_disk else None
        if reader is None:
            self.forget([run.key])
        return reader

    def discard(self, key: str, cause: MissCause) -> bool:
        """Give up a run that could not be read to its end; False if ``key`` is none of this cache."""
        with self._lock:
            run = self._index.get(key)
            if run is None:
                return False
            if self._shelf:
                self._shelf.discard(run, cause)
            self._drop([run])
            return True

    def keep(self, finished: Finished, take: Take, limits: Limits = ()) -> tuple[int, int]:
        """Keep what a finished request computed. Returns how many tokens of its beginning were kept, and are now.

        Without ``automatic``, only what ``limits`` name is kept. What does not fit into the budgets is not.
        """
        limits = [(self._whole(tokens), ttl_s) for tokens, ttl_s in limits]
        end = len(finished.token_ids) if self.settings.automatic else max((to for to, _ in limits), default=0)
        if self._owners:
            known = self._owners.known({key for _, key in finished.chunks})
            finished = replace(finished, chunks=tuple(chunk for chunk in finished.chunks if chunk[1] in known))
        with self._lock:
            grown = list(stretches(finished, self._whole(end), self.settings.block_tokens))
            before = self._kept(finished, grown)
            borders = {tokens for tokens, _ in limits}
            now = self.clock()
            wanted = chain.from_iterable(runs_of(finished, s, borders, self._index.has_block, now) for s in grown)
            path = [piece.run for piece in finished.path]
            for run in path:
                run.pins += 1
            for run in path:
                self._give_time(run, limits)
            for run in wanted:
                self._give_time(run, limits)
                if not self._add(run, take):
                    break
                run.pins += 1
                path.append(run)
            self._promote(finished.path, take)
            for run in path:
                run.pins -= 1
            return before, self._kept(finished, grown)

    def along(self, token_ids: Sequence[int]) -> Path:
        """The exact path along ``token_ids``, which is not held."""
        with self._lock:
            return self._index.longest(Sought(token_bytes((*token_ids, 0))), self.clock())

    def refresh(self, token_ids: Sequence[int], ttl_s: float) -> None:
        """Use the exact path along ``token_ids`` now, and set its time to live."""
        with self._lock:
            path = self.along(token_ids)
            self._use(path)
            for piece in path:
                piece.run.ttl_s = ttl_s
            self._next_expiry = 0.0

    def count(self, use: HourlyUse, path: Path) -> None:
        """Count a request, and what it read of ``path``."""
        with self._lock:
            self._counters.count(self.clock(), use)
            for piece in path:
                piece.run.reads += 1
                piece.run.read_tokens += piece.tokens

    def forget(self, keys: Iterable[str]) -> int:
        """Drop runs by their keys, from memory and disk. Returns how many there were."""
        with self._lock:
            runs = [run for run in map(self._index.get, keys) if run is not None]
            self._drop(runs)
            return len(runs)

    def clear(self) -> int:
        """Drop everything. Returns how many runs there were."""
        with self._lock:
            self._bring_up_to_date()
            return self.forget([run.key for run in self._index])

    def revalidate(self) -> None:
        """Drop what was built on documents and texts that are gone, and what is past its time."""
        with self._lock:
            self._seen = (-1, self._seen[1])
            self._next_expiry = 0.0
            self._bring_up_to_date()

    def statistics(self) -> CacheStatistics:
        with self._lock:
            self._bring_up_to_date()
            runs = list(self._index)
            most_saved_first = sorted(runs, key=lambda run: (-run.read_tokens, -run.used_at, run.key))
            hours = self._counters.hours
            return CacheStatistics(
                namespace=self.namespace,
                total=total(hours),
                hours=hours,
                top=tuple(PrefixUse.of(run) for run in most_saved_first[:_TOP] if run.read_tokens),
                prefixes=len(runs),
                tokens=sum(len(run.token_ids) for run in runs),
                memory_bytes=self._memory_bytes,
                memory_budget=self.settings.memory_bytes,
                disk_bytes=sum(run.disk_bytes for run in runs),
                disk_budget=self.settings.disk_bytes if self._shelf else 0,
                evicted=self._evicted,
                expired=self._expired,
                failed_writes=self._shelf.failed if self._shelf else 0,
            )

    def prefixes(self) -> tuple[PrefixUse, ...]:
        """What is kept, last used first."""
        with self._lock:
            self._bring_up_to_date()
            return tuple(PrefixUse.of(run) for run in sorted(self._index, key=lambda run: (-run.used_at, run.start)))

    def flush(self) -> None:
        """Wait until the disk has all that it is to have."""
        if self._shelf:
            with self._lock:
                self._shelf.note(list(self._index), self._counters.take_pending())
            self._shelf.flush()

    def close(self, *, abandon: bool = False) -> None:
        """Write what waits to be written, unless it is abandoned, and let go of everything. Twice is no error."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._shelf and abandon:
            self._shelf.abandon()
        elif self._shelf:
            self.flush()
            self._shelf.close()
        with self._lock:
            for run in self._index:
                run.kv = None
                self._index.remove(run)
            self._memory_bytes = 0

    def _whole(self, tokens: int) -> int:
        return tokens - tokens % self.settings.block_tokens

    def _use(self, path: Path) -> None:
        self._order += 1
        for piece in path:
            piece.run.used_at = self.clock()
            piece.run.order = self._order

    def _add(self, run: Run, take: Take) -> bool:
        """Copy a run's rows, as far as there is room."""
        self._order += 1
        run.order = self._order
        kv = take(run.start, run.token_ids)
        if not all(map(is_finite, kv.layers)):
            return False
        if self._make_room(kv.nbytes):
            run.kv = kv
            self._memory_bytes += kv.nbytes
        if self._shelf:
            self._put_on_shelf(self._shelf, run, kv)
        if run.kv is not None or run.disk_bytes:
            self._index.add(run)
        return run.kv is not None or run.disk_bytes > 0

    def _put_on_shelf(self, shelf: Shelf, run: Run, kv: ChunkKV) -> None:
        """Queue a run to be written, and what was used longest ago to be deleted before, if it is in the way."""
        needed = file_bytes(kv)
        if needed > self.settings.disk_bytes or shelf.read_only:
            return
        over = sum(other.disk_bytes for other in self._index) + needed - self.settings.disk_bytes
        for other in self._idle(lambda other: other.on_disk) if over > 0 else ():
            over -= other.disk_bytes
            self._evicted += 1
            other.disk_bytes, other.on_disk = 0, False
            shelf.delete([other])
            if other.kv is None:
                self._index.remove(other)
            if over <= 0:
                break

        def done(nbytes: int) -> None:
            with self._lock:
                run.disk_bytes, run.on_disk = nbytes, nbytes > 0
                if not run.readable:
                    self._index.remove(run)

        if over <= 0 and shelf.put(run, kv, done):
            run.disk_bytes = needed

    def _promote(self, path: Path, take: Take) -> None:
        """Bring what was read from the disk back into memory."""
        for piece in path:
            run = piece.run
            if run.kv is None and piece.whole and self._index.get(run.key) is run:
                kv = take(run.start, run.token_ids)
                if self._make_room(kv.nbytes):
                    run.kv = kv
                    self._memory_bytes += kv.nbytes

    def _make_room(self, nbytes: int) -> bool:
        """Evict from memory what was used longest ago, tails first; False if there is not enough of it."""
        if nbytes > self.settings.memory_bytes:
            return False
        over = self._memory_bytes + nbytes - self.settings.memory_bytes
        for run in self._idle(lambda run: run.kv is not None) if over > 0 else ():
            over -= run.memory_bytes
            self._memory_bytes -= run.memory_bytes
            run.kv = None
            self._evicted += 1
            if not run.disk_bytes:
                self._index.remove(run)
            if over <= 0:
                break
        return over <= 0

    def _idle(self, has_bytes: Callable[[Run], bool]) -> list[Run]:
        """Runs that nobody reads, in the order in which they are evicted: what has a time to live goes last, then
        by last use; of one prompt, the tail goes first.
        """
        now = self.clock()
        return sorted(
            (run for run in self._index if has_bytes(run) and not run.pins),
            key=lambda run: (run.ttl_s is not None and run.expires_at() > now, run.order, -run.start),
        )

    def _give_time(self, run: Run, limits: Limits) -> None:
        """What stands before a cache point lives as long as what stands behind it."""
        times = [ttl_s for tokens, ttl_s in limits if tokens > run.start]
        if times:
            run.ttl_s = max(*times, run.ttl_s or 0.0)
            self._next_expiry = min(self._next_expiry, run.expires_at())

    def _kept(self, finished: Finished, grown: Sequence[Stretch]) -> int:
        kept = finished.path.tokens
        for block_hash in chain.from_iterable(stretch.hashes for stretch in grown):
            if not self._index.has_block(block_hash):
                break
            kept += self.settings.block_tokens
        return kept

    def _bring_up_to_date(self) -> None:
        """Notice what time, other processes and removed documents have changed."""
        self._expire()
        seen = (self._owners.version() if self._owners else 0, self._shelf.version() if self._shelf else 0)
        if seen == self._seen:
            return
        if self._shelf and seen[1] != self._seen[1]:
            self._read_shelf(self._shelf)
        if self._owners and seen[0] != self._seen[0]:
            built_on = {key for run in self._index for key in run.built_on}
            gone = built_on - self._owners.known(built_on)
            self._drop([run for run in self._index if run.built_on & gone])
        self._seen = seen
        self._expire()

    def _read_shelf(self, shelf: Shelf) -> None:
        """Take over what other processes wrote, and drop what they dropped."""
        stored = {run.key: run for run in shelf.runs()}
        for run in self._index:
            if run.on_disk and run.key not in stored:
                self._let_go(run)
        for key, run in sorted(stored.items(), key=lambda item: (item[1].used_at, -item[1].start)):
            if (own := self._index.get(key)) is not None:
                own.disk_bytes, own.on_disk = run.disk_bytes, True
            else:
                self._order += 1
                run.order = self._order
                self._index.add(run)
        self._next_expiry = 0.0

    def _expire(self) -> None:
        now = self.clock()
        if now < self._next_expiry:
            return
        old = [run for run in self._index if run.expires_at() <= now]
        self._expired += len(old)
        self._drop(old)
        self._next_expiry = min((run.expires_at() for run in self._index), default=float("inf"))

    def _drop(self, runs: Sequence[Run]) -> None:
        for run in runs:
            self._let_go(run)
        if runs and self._shelf:
            self._shelf.delete(runs)

    def _let_go(self, run: Run) -> None:
        """Out of index and memory. A request that is reading it goes on reading."""
        self._memory_bytes -= run.memory_bytes
        run.kv = None
        self._index.remove(run)
