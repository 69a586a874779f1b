"""Runs on disk: files of a DiskStore, named by rows of the catalogue, written by a thread of their own.

A run is a cache of what can be computed again. So nothing here fails an answer: what cannot be written
is counted, and what cannot be read is a miss.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import astuple, fields
from sqlite3 import Connection
from typing import Any

from ragblend.errors import LibraryBusyError, RagblendError, StoreError
from ragblend.prefix.chain import Blend
from ragblend.prefix.run import Jump, Run
from ragblend.prefix.run_store import RunStore
from ragblend.prefix.statistics import HourlyUse
from ragblend.store.base import ChunkKV, KVReader, MissCause
from ragblend.store.key import token_bytes, token_ids_of
from ragblend.store.namespace_key import require_same_key
from ragblend.store.row_values import RowValues
from ragblend.store.rows import is_sound

logger = logging.getLogger(__name__)

HASH_BYTES = 32
# Bytes of KV that may wait to be written; more is not kept on disk.
_WAITING_BYTES = 512 << 20
# Where there are limits, one process writes at a time. After having waited for another one, nothing is written so long.
_BUSY_S = 30.0
_COLUMNS = "key, namespace, start, token_ids, parent, hashes, jump, built_on, turns, used_at, ttl_s, reads, read_tokens"
_HOURS = ", ".join(field.name for field in fields(HourlyUse))


def file_bytes(kv: ChunkKV) -> int:
    """At least as many bytes as a run's file has: its KV, ids and header."""
    return kv.nbytes + 4 * len(kv.token_ids) + 512 * (len(kv.layers) + 2)


class Shelf:
    """The runs of one namespace in a library's folder.

    store: given away. values: how its rows' values are stored. key_namespace: what stands for the namespace in hash
    chains. evicted: keys of runs whose files made room for other entries of the namespace, until somebody takes them
    out.
    """

    def __init__(self, store: RunStore) -> None:
        self.store = store
        self.namespace = store.of.namespace
        self.key_namespace = store.of.key_namespace
        self.values = store.of.values
        self.evicted: deque[str] = deque()
        self.failed = 0
        self._catalogue = store.catalogue
        self._own_changes = 0
        self._deleted: set[str] = set()
        self._waiting_bytes = 0
        self._abandoned = False
        self._busy_until = 0.0
        self._noted: dict[str, tuple[float, float | None, int]] = {}
        self._jobs: queue.SimpleQueue[Callable[[], None] | threading.Event | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        store.forget_runs = self._forget_runs

    @property
    def read_only(self) -> bool:
        return self._catalogue.read_only

    def version(self) -> int:
        """Changes whenever another process has added or deleted runs."""
        return self._catalogue.counter(self._version_name) - self._own_changes

    def runs(self) -> list[Run]:
        """All runs on disk. A row that is not what was written is left out: it is a miss."""
        self.values.require_key()
        rows = self._catalogue.rows(
            f"SELECT {_COLUMNS}, (SELECT bytes FROM entries WHERE entries.key = prefix_runs.key) AS file_bytes"
            f" FROM prefix_runs WHERE namespace = ? AND file_bytes IS NOT NULL AND {is_sound('prefix_runs')}",
            self.namespace,
        )
        found = []
        for row in rows:
            with suppress(ValueError, TypeError, LookupError, StoreError):
                run = _run_of(row, self.values)
                if run.key not in self._deleted:
                    found.append(run)
        return found

    def open(self, run: Run) -> KVReader | None:
        """A run's KV, or None if it cannot be read."""
        try:
            return self.store.open(run.key, run.token_ids)
        except StoreError as error:
            logger.warning("a kept prefix could not be read: %s", error)
            return None

    def discard(self, run: Run, cause: MissCause) -> None:
        """Count a miss of a run whose bytes could not be read to their end, and set its file aside."""
        with suppress(StoreError):
            self.store.discard(run.key, cause)

    def put(self, run: Run, kv: ChunkKV, held: Sequence[str], done: Callable[[int], None]) -> bool:
        """Queue a run to be written; False if it will not be.

        held: keys of runs that must not make room for it. done: called with its file's bytes, 0 on failure.
        """
        with self._lock:
            if self.read_only or self._waiting_bytes + kv.nbytes > _WAITING_BYTES:
                return False
            self._waiting_bytes += kv.nbytes
            self._deleted.discard(run.key)

        def write() -> None:
            nbytes = 0
            try:
                if run.key not in self._deleted:
                    nbytes = self._write_unless_busy(run, kv, held)
            finally:
                with self._lock:
                    self._waiting_bytes -= kv.nbytes
                done(nbytes)

        self._submit(write)
        return True

    def delete(self, runs: Iterable[Run]) -> None:
        """Queue runs to be deleted; they are not found again from now on."""
        keys = [run.key for run in runs]
        with self._lock:
            self._deleted.update(keys)
        if not self.read_only:
            self._submit(lambda: self._delete(keys))

    def clear(self) -> None:
        """Remove all rows of runs, named caches and counters, as part of the caller's transaction if there is one."""
        with self._catalogue.transaction() as connection:
            for table in ("prefix_runs", "prefix_names", "prefix_hours"):
                connection.execute(f"DELETE FROM {table} WHERE namespace = ?", (self.namespace,))
            self._changed()

    def note(self, runs: Sequence[Run], hours: Sequence[HourlyUse]) -> None:
        """Queue the last uses of runs, and counters, to be written down."""
        uses = [(run.used_at, run.ttl_s, run.reads, run.read_tokens, run.key) for run in runs if run.on_disk]
        if not self.read_only:
            self._submit(lambda: self._note(uses, hours))

    def hours(self) -> list[HourlyUse]:
        rows = self._catalogue.rows(
            f"SELECT {_HOURS} FROM prefix_hours WHERE namespace = ? AND {is_sound('prefix_hours')}", self.namespace
        )
        return [HourlyUse(*row) for row in rows]

    def catch_up(self, runs: Iterable[Run]) -> None:
        """Take over when other processes used runs last, and how long they are to be kept."""
        for run in runs:
            rows = self._catalogue.rows(
                f"SELECT used_at, ttl_s FROM prefix_runs WHERE key = ? AND {is_sound('prefix_runs')}", run.key
            )
            for used_at, ttl_s in rows:
                if used_at > run.used_at:
                    run.used_at, run.ttl_s = used_at, ttl_s

    def flush(self) -> None:
        """Wait until everything that was queued is done."""
        with self._lock:
            running = self._thread is not None
        if running:
            done = threading.Event()
            self._submit(done)
            done.wait()

    def close(self) -> None:
        """End the thread, once it has done what was queued, and close the store."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join()
        self.store.close()

    def abandon(self) -> None:
        """End the thread at the next run, without what waits."""
        self._abandoned = True
        self.close()

    def _submit(self, job: Callable[[], None] | threading.Event) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="ragblend-prefix", daemon=True)
                self._thread.start()
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if isinstance(job, threading.Event):
                    job.set()
                elif not self._abandoned:
                    job()
            except RagblendError as error:  # a full disk, another writer: the cache does without
                self.failed += 1
                logger.warning("a prefix could not be kept: %s", error)
            except Exception:
                self.failed += 1
                logger.exception("the prefix cache failed")

    def _write_unless_busy(self, run: Run, kv: ChunkKV, held: Sequence[str]) -> int:
        if time.monotonic() < self._busy_until:
            self.failed += 1
            return 0
        try:
            with self.store.writing(), self.store.pinned(held):
                return self._write(run, kv)
        except LibraryBusyError:
            self._busy_until = time.monotonic() + _BUSY_S
            raise

    def _write(self, run: Run, kv: ChunkKV) -> int:
        entry = self.store.write_blob(run.key, kv)
        row = (
            run.key,
            self.namespace,
            run.start,
            self.values.seal("prefix_runs.token_ids", run.key, token_bytes(run.token_ids)),
            run.parent,
            b"".join(run.hashes),
            self.values.seal("prefix_runs.jump", run.key, _jump_json(run.jump)),
            json.dumps(sorted(run.built_on)),
            run.turns,
            run.used_at,
            run.ttl_s,
            run.reads,
            run.read_tokens,
        )
        marks = ", ".join("?" * len(row))
        with self._catalogue.transaction() as connection:
            require_same_key(self._catalogue, self.namespace, self.values)
            self.store.record([entry])
            connection.execute(f"INSERT OR REPLACE INTO prefix_runs ({_COLUMNS}) VALUES ({marks})", row)
            self._changed()
        return entry.nbytes

    def _delete(self, keys: Sequence[str]) -> None:
        with self._catalogue.transaction() as connection:
            deleted = connection.executemany("DELETE FROM prefix_runs WHERE key = ?", [(key,) for key in keys])
            if deleted.rowcount:
                self.store.forget(keys)
                self._changed()
        if deleted.rowcount:
            self.store.erase(keys)
        with self._lock:
            self._deleted.difference_update(keys)
        for key in keys:
            self._noted.pop(key, None)

    def _forget_runs(self, connection: Connection, keys: Sequence[str]) -> None:
        connection.executemany("DELETE FROM prefix_runs WHERE key = ?", [(key,) for key in keys])
        self._changed()
        self.evicted.extend(keys)

    def _note(self, uses: Sequence[tuple[float, float | None, int, int, str]], hours: Sequence[HourlyUse]) -> None:
        changed = [use for use in uses if self._noted.get(use[-1]) != use[:3]]
        if not changed and not hours:
            return
        sums = [field.name for field in fields(HourlyUse)][1:]
        update = ", ".join(f"{name} = {name} + excluded.{name}" for name in sums)
        marks = ", ".join("?" * (len(sums) + 3))
        with self._catalogue.transaction() as connection:
            connection.executemany(
                "UPDATE prefix_runs SET used_at = max(used_at, ?), ttl_s = ?, reads = ?, read_tokens = ? WHERE key = ?",
                changed,
            )
            connection.executemany(
                f"INSERT INTO prefix_hours (id, namespace, {_HOURS}) VALUES ({marks})"
                f" ON CONFLICT (id) DO UPDATE SET {update}",
                [(f"{hour.hour} {self.namespace}", self.namespace, *astuple(hour)) for hour in hours],
            )
        self._noted.update((use[-1], use[:3]) for use in changed)

    def _changed(self) -> None:
        """Bump the version by which other processes notice, as part of the caller's transaction."""
        self._catalogue.count(self._version_name)
        self._own_changes += 1

    @property
    def _version_name(self) -> str:
        return f"prefix:{self.namespace}"


def _run_of(row: Sequence[Any], values: RowValues) -> Run:
    """A run from its row. Raises ValueError, TypeError, LookupError or StoreError unless it is what was written."""
    key, _, start, token_ids, parent, hashes, jump, built_on, turns, used_at, ttl_s, reads, read_tokens, nbytes = row
    token_ids = values.open("prefix_runs.token_ids", key, token_ids)
    jump = values.open("prefix_runs.jump", key, jump)
    if not (isinstance(token_ids, bytes) and isinstance(hashes, bytes) and isinstance(parent, bytes)):
        raise TypeError("not bytes")
    run = Run(
        start=int(str(start)),
        token_ids=token_ids_of(token_ids),
        parent=parent,
        hashes=tuple(hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)),
        jump=_jump_of(parent, jump),
        built_on=frozenset(json.loads(str(built_on))),
        turns=int(str(turns)),
        used_at=float(str(used_at)),
        ttl_s=None if ttl_s is None else float(str(ttl_s)),
        disk_bytes=int(str(nbytes)),
        on_disk=True,
        reads=int(str(reads)),
        read_tokens=int(str(read_tokens)),
    )
    if run.key != key:
        raise ValueError("the row is damaged")
    return run


def _jump_json(jump: Jump | None) -> str | None:
    if jump is None:
        return None
    blend = jump.blend
    return json.dumps([jump.parent.hex(), jump.length, jump.tail.hex(), blend.policy, blend.ratio, blend.reused])


def _jump_of(seed: bytes, text: object) -> Jump | None:
    if text is None:
        return None
    parent, length, tail, policy, ratio, reused = json.loads(str(text))
    pieces = tuple((int(start), int(count), str(key)) for start, count, key in reused)
    return Jump(bytes.fromhex(parent), seed, int(length), bytes.fromhex(tail), Blend(policy, ratio, pieces))
