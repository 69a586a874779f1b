"""The prefix cache of one namespace: finds, keeps, evicts and forgets runs of blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Protocol

from ragblend.config import PrefixSettings
from ragblend.errors import RagblendError
from ragblend.prefix.alarm import Alarm
from ragblend.prefix.chain import chain_root
from ragblend.prefix.growth import Finished, Stretch, runs_of, stretches
from ragblend.prefix.index import Index, Sought
from ragblend.prefix.run import Path, Piece, Run, path_of
from ragblend.prefix.run_tiers import RunTiers
from ragblend.prefix.shelf import Shelf
from ragblend.prefix.statistics import CacheStatistics, Counters, HourlyUse, PrefixUse, total
from ragblend.store.base import ChunkKV, KVReader, MissCause
from ragblend.store.codecs import is_finite
from ragblend.store.key import token_bytes
from ragblend.store.memory import MemoryStore

_TOP = 10
_NOTE_S = 5.0
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

    def key_of(self, text: str) -> str | None:
        """The key of the chunk that is this text, as it stands in prompts."""
        ...


class PrefixCache:
    """Safe to share between threads.

    model: a digest of everything that the model's KV depends on. clock: seconds since the epoch. memory: where runs are
    kept in memory, perhaps beside chunks. shelf: keeps runs on disk. owners: by which prefixes over removed documents
    are noticed. after_expiry: called when something has gone because its time had come, though nobody asked.
    """

    def __init__(
        self,
        namespace: str,
        model: str,
        settings: PrefixSettings,
        clock: Callable[[], float],
        memory: MemoryStore | None = None,
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
        self._tiers = RunTiers(self._index, settings, clock, self._lock, memory, shelf)
        self._expired = 0
        self._next_expiry = float("inf")
        self._alarm = Alarm(clock, self._ring)
        self.after_expiry: Callable[[], object] = lambda: None
        self._closed = False
        self._noted_at = float("-inf")
        self._counters = Counters(shelf.hours() if shelf else ())

    @property
    def nothing(self) -> Path:
        """The path of no blocks."""
        return path_of((), self._index.root)

    def find(self, sought: Sought, longer_than: int = 0) -> Path:
        """The longest kept beginning of a prompt if it has more than so many tokens, held until ``release``."""
        with self._lock:
            if self._closed:
                return self.nothing
            self._bring_up_to_date()
            path = self._longest(sought)
            if path.turns >= self.settings.max_turns:
                path = path.exact()
            if path.tokens <= longer_than:
                return self.nothing
            now = self.clock()
            for piece in path:
                piece.run.used_at = now
                piece.run.pins += 1
            return path

    def release(self, path: Iterable[Piece]) -> None:
        with self._lock:
            for piece in path:
                piece.run.pins -= 1

    def open(self, run: Run) -> KVReader | None:
        """A run's KV, keys as they stand; None, and the run is dropped, if it cannot be read."""
        reader = self._tiers.open(run)
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
            self._tiers.drop([run])
            return True

    def keep(self, finished: Finished, take: Take, limits: Limits = ()) -> tuple[int, int]:
        """Keep what a finished request computed. Returns how many tokens of its beginning were kept, and are now.

        Without ``automatic``, only what ``limits`` name is kept. What does not fit into the budgets is not.
        """
        limits = [(self._whole(tokens), ttl_s) for tokens, ttl_s in limits]
        end = len(finished.token_ids) if self.settings.automatic else max((to for to, _ in limits), default=0)
        with self._lock:
            path = [piece.run for piece in finished.path]
            if self._closed or any(self._index.get(run.key) is not run for run in path):  # cleared meanwhile
                return 0, 0
            known = self.known([key for _, key in finished.chunks])
            end = min([end, *(start for start, key in finished.chunks if key not in known)])
            self._tiers.sweep()
            grown = list(stretches(finished, self._whole(end), self.settings.block_tokens))
            before = self._kept(finished, grown)
            borders = {tokens for tokens, _ in limits}
            now = self.clock()
            wanted = chain.from_iterable(runs_of(finished, s, borders, self._index.has_block, now) for s in grown)
            with self._held(self._along(path, grown)) as along:
                for run in along:
                    run.used_at = now  # as what is added: of one prompt the tail goes first
                    self._give_time(run, limits)
                for run in wanted:
                    self._give_time(run, limits)
                    kv = take(run.start, run.token_ids)
                    if not all(map(is_finite, kv.layers)) or not self._tiers.put(run, kv, along):
                        break
                    run.pins += 1
                    along.append(run)
                self._promote(finished.path, take)
            self._alarm.set(self._next_expiry)
            return before, self._kept(finished, grown)

    def along(self, token_ids: Sequence[int]) -> Path:
        """The exact path along ``token_ids``, which is not held."""
        with self._lock:
            return self._longest(Sought(token_bytes((*token_ids, 0))))

    def refresh(self, token_ids: Sequence[int], ttl_s: float) -> None:
        """Use the exact path along ``token_ids`` now, and set its time to live."""
        with self._lock:
            now, runs = self.clock(), [piece.run for piece in self.along(token_ids)]
            for run in runs:
                run.used_at, run.ttl_s = now, ttl_s
            self._next_expiry = 0.0
            self._expire()
            if self._shelf:
                self._shelf.note(runs, [])

    def count(self, use: HourlyUse, path: Path) -> None:
        """Count a request, and what it read of ``path``."""
        with self._lock:
            self._counters.count(self.clock(), use)
            for piece in path:
                piece.run.reads += 1
                piece.run.read_tokens += piece.tokens
            if time.monotonic() - self._noted_at > _NOTE_S:
                self._note()

    def forget(self, keys: Iterable[str]) -> int:
        """Drop runs by their keys, from memory and disk. Returns how many there were."""
        with self._lock:
            runs = [run for run in map(self._index.get, keys) if run is not None]
            self._tiers.drop(runs)
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

    def known(self, keys: Collection[str]) -> set[str]:
        """Those of ``keys`` that a document or a text has; all of them where there is no library."""
        return self._owners.known(keys) if self._owners else set(keys)

    def key_of(self, text: str) -> str | None:
        """The key of the library's chunk that is this text; None where there is none."""
        return self._owners.key_of(text) if self._owners else None

    def statistics(self) -> CacheStatistics:
        with self._lock:
            self._bring_up_to_date()
            self._tiers.sweep()
            runs, memory = list(self._index), self._tiers.memory
            most_saved_first = sorted(runs, key=lambda run: (-run.read_tokens, -run.used_at, run.key))
            hours = self._counters.hours
            return CacheStatistics(
                namespace=self.namespace,
                total=total(hours),
                hours=hours,
                top=tuple(PrefixUse.of(run) for run in most_saved_first[:_TOP] if run.read_tokens),
                prefixes=len(runs),
                tokens=sum(len(run.token_ids) for run in runs),
                memory_bytes=sum(run.memory_bytes for run in runs),
                memory_budget=min(self.settings.memory_bytes, memory.budget_bytes) if memory else 0,
                disk_bytes=sum(run.disk_bytes for run in runs),
                disk_budget=self.settings.disk_bytes if self._shelf else 0,
                evicted=self._tiers.evicted,
                expired=self._expired,
                failed_writes=self._shelf.failed if self._shelf else 0,
            )

    def prefixes(self) -> tuple[PrefixUse, ...]:
        """What is kept, last used first."""
        with self._lock:
            self._bring_up_to_date()
            self._tiers.sweep()
            return tuple(PrefixUse.of(run) for run in sorted(self._index, key=lambda run: (-run.used_at, run.start)))

    def flush(self) -> None:
        """Wait until the disk has all that it is to have."""
        if self._shelf:
            with self._lock:
                self._note()
            self._shelf.flush()

    def close(self, *, abandon: bool = False) -> None:
        """Write what waits to be written, unless it is abandoned, and let go of everything. Twice is no error."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._alarm.close()
        if self._shelf and abandon:
            self._shelf.abandon()
        elif self._shelf:
            self.flush()
            self._shelf.close()
        with self._lock:
            for run in self._index:
                self._tiers.let_go(run)

    def _note(self) -> None:
        """Have it written down what was used, for other processes and for the next one."""
        self._noted_at = time.monotonic()
        if self._shelf:
            self._shelf.note(list(self._index), self._counters.take_pending())

    def _whole(self, tokens: int) -> int:
        return tokens - tokens % self.settings.block_tokens

    def _longest(self, sought: Sought) -> Path:
        return self._index.longest(sought, self.clock(), self._tiers.is_readable)

    def _promote(self, path: Path, take: Take) -> None:
        """Bring what was read from the disk back into memory."""
        for piece in path:
            run = piece.run
            if not run.memory_bytes and piece.whole and self._index.get(run.key) is run:
                self._tiers.put_in_memory(run, take(run.start, run.token_ids))

    def _give_time(self, run: Run, limits: Limits) -> None:
        """What stands before a cache point lives as long as what stands behind it."""
        times = [ttl_s for tokens, ttl_s in limits if tokens > run.start]
        if times:
            run.ttl_s = max(*times, run.ttl_s or 0.0)
            self._next_expiry = min(self._next_expiry, run.expires_at())

    @contextmanager
    def _held(self, runs: list[Run]) -> Iterator[list[Run]]:
        """Runs that stay for the block, also those that it adds to the list and pins itself."""
        for run in runs:
            run.pins += 1
        try:
            yield runs
        finally:
            for run in runs:
                run.pins -= 1

    def _along(self, path: Sequence[Run], grown: Sequence[Stretch]) -> list[Run]:
        """The runs that have a finished request's blocks already, others' among them."""
        found = list(path)
        for block_hash in chain.from_iterable(stretch.hashes for stretch in grown):
            run = self._index.run_with(block_hash)
            if run is not None and run not in found[-1:]:
                found.append(run)
        return list(dict.fromkeys(found))

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
            self._tiers.drop([run for run in self._index if run.built_on & gone])
        self._seen = seen
        self._expire()

    def _read_shelf(self, shelf: Shelf) -> None:
        """Take over what other processes wrote, and drop what they dropped."""
        self._tiers.sweep()
        stored = {run.key: run for run in shelf.runs()}
        for run in self._index:
            if run.on_disk and run.key not in stored:
                self._tiers.let_go(run)
        for key, run in stored.items():
            if (own := self._index.get(key)) is not None:
                own.disk_bytes, own.on_disk = run.disk_bytes, True
                if run.used_at > own.used_at:
                    own.used_at, own.ttl_s = run.used_at, run.ttl_s
            else:
                self._index.add(run)
        self._next_expiry = 0.0

    def _expire(self) -> None:
        now = self.clock()
        if now < self._next_expiry:
            return
        old = [run for run in self._index if run.expires_at() <= now]
        if self._shelf:
            self._shelf.catch_up(old)
        old = [run for run in old if run.expires_at() <= now]
        self._expired += len(old)
        self._tiers.drop(old)
        self._next_expiry = min((run.expires_at() for run in self._index), default=float("inf"))
        self._alarm.set(self._next_expiry)

    def _ring(self) -> None:
        """Drop what is past its time where nobody asks. A library that cannot be read just now is left alone."""
        with suppress(RagblendError):
            with self._lock:
                if self._closed:
                    return
                self._bring_up_to_date()
                self._alarm.set(self._next_expiry)
            self.after_expiry()
