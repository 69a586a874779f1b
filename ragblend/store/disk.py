"""Chunk KV in a folder: one immutable file per entry, named by a row of the catalogue.

A file is written under a unique temporary name, synced, renamed, and its folder synced, before the
row is committed. Whatever is interrupted leaves at most a file without a row (``orphans``), which is
never served; a row whose file is missing or damaged is a miss, and the entry is set aside.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from ragblend.config import DEFAULT_NAMESPACE, DiskLimits, require
from ragblend.errors import EntryError, LibraryBusyError, StoreError
from ragblend.store.base import ChunkKV, EvictionReason, KVStore, MissCause, StoreEvents
from ragblend.store.catalogue import KV_FOLDER, Catalogue
from ragblend.store.encryption import Cipher
from ragblend.store.eviction import Candidate
from ragblend.store.files import SYSTEM_FILES, Files, file_errors, size_of
from ragblend.store.format import encode_chunk
from ragblend.store.key import digest_fields
from ragblend.store.namespace_key import row_values
from ragblend.store.reader import ChunkReader
from ragblend.store.room import DiskRoom
from ragblend.store.source import FileSource

log = logging.getLogger(__name__)

_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Entry:
    """What the catalogue says of an entry. nbytes: size of its file. seconds: what computing it took, 0 if unknown."""

    key: str
    tokens: int
    nbytes: int
    seconds: float = 0.0


class DiskStore(KVStore):
    """The entries of one namespace in the folder ``root``, recorded in ``catalogue``.

    The catalogue is shared with the library and is not closed with the store. With a read-only
    catalogue nothing in the folder is changed. Keys are hex SHA-256; writing under another raises
    ConfigError. values: how values of the namespace's rows stand in the catalogue.

    ``put`` commits one entry. To commit many at once, or together with other rows, write the files
    first and record them in one transaction::

        entries = [store.write_blob(key, kv) for key, kv in computed]
        with catalogue.transaction():
            store.record(entries)
            ...

    and to delete in a transaction, ``forget`` in it and ``erase`` after it.

    beside: another store of the same namespace, with which this one shares its limits (``room``).
    """

    tier = "disk"

    def __init__(
        self,
        root: Path,
        catalogue: Catalogue,
        namespace: str = DEFAULT_NAMESPACE,
        files: Files = SYSTEM_FILES,
        *,
        limits: DiskLimits | None = None,
        beside: DiskStore | None = None,
        cipher: Cipher | None = None,
        codec: str = "raw",
        events: StoreEvents | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(events, codec)
        self.files = files
        self.root = root
        self.namespace = namespace
        digest = digest_fields(namespace)
        # What stands for the namespace in keys: where it is encrypted, nobody can tell a chunk from its key.
        self.key_namespace = cipher.secret_name(namespace) if cipher else namespace
        self.folder = root / KV_FOLDER / digest
        self.quarantine = root / "quarantine" / digest
        self.catalogue = catalogue
        self.cipher = cipher
        self.values = row_values(catalogue, namespace, cipher)
        if beside is None:
            self.room = DiskRoom(self, limits or DiskLimits(), clock)
        else:
            self.room = beside.room
            self.room.admit(self)
        self._unrecorded: set[Path] = set()
        self._closed = False
        self.events.watch(self)

    def contains(self, key: str) -> bool:
        return self._entry(key) is not None

    def put(self, key: str, kv: ChunkKV) -> int:
        entry = self._entry(key)
        with file_errors(self.root):
            there = entry is not None and self.files.exists(self._path(key))
        if entry is None or not there:
            entry = self.write_blob(key, kv)
            self.record([entry])
        return entry.nbytes

    def write_blob(self, key: str, kv: ChunkKV) -> Entry:
        """Write an entry's file durably, without a row: it is served once ``record`` is committed.

        Raises StoreFullError, StoreError; ConfigError for NaN or Inf, and for what the codec cannot hold.
        """
        self._require_writable()
        self.values.require_key()
        path = self._path(key)
        pieces = encode_chunk(key, kv, self.codec)
        if self.cipher is not None:
            pieces = [*self.cipher.seal(key, pieces)]
        nbytes = sum(len(piece) for piece in pieces)
        with self.room.reserved(nbytes), file_errors(self.root, nbytes):
            replaced = size_of(path)
            self.files.make_private_folder(path.parent)
            self.files.write_whole(path, pieces)
            self.room.quota.change(-replaced)
            self._unrecorded.add(path)
        if kv.seconds:
            self.events.computed(kv.seconds)
        return Entry(key, len(kv.token_ids), nbytes, kv.seconds)

    def record(self, entries: Iterable[Entry]) -> None:
        """Commit the rows of written files, as part of the caller's transaction if there is one."""
        self._require_writable()
        now = time.time()
        entries = list(entries)
        with self.catalogue.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO entries (key, namespace, tokens, bytes, created_at) VALUES (?, ?, ?, ?, ?)",
                [(entry.key, self.namespace, entry.tokens, entry.nbytes, now) for entry in entries],
            )
            connection.executemany(
                "INSERT OR REPLACE INTO costs (key, namespace, seconds) VALUES (?, ?, ?)",
                [(entry.key, self.namespace, entry.seconds) for entry in entries if entry.seconds],
            )
            connection.executemany("DELETE FROM evictions WHERE key = ?", [(entry.key,) for entry in entries])
        self._unrecorded.difference_update(self._path(entry.key) for entry in entries)

    def _open(self, key: str, token_ids: tuple[int, ...]) -> ChunkReader | None:
        self.values.require_key()
        if self._entry(key) is None:
            self.count_miss("missing")
            return None
        try:
            source = FileSource(self._path(key), self.files)
            if self._is_expired(source.modified_at):
                source.close()
                self.count_miss("expired")
                return None
            reader = self._reader(key, source)
        except (EntryError, OSError) as error:
            self.discard(key, _miss_cause(error))
            return None
        if reader.token_ids != token_ids:  # whole and under its own key, so it stays
            reader.close()
            self.count_miss("stale")
            return None
        if self.room.limits.any:
            source.touch()
        return reader

    def _reader(self, key: str, source: FileSource) -> ChunkReader:
        """A reader of an open file, which is closed on an error."""
        try:
            return ChunkReader(source if self.cipher is None else self.cipher.open(key, source), key)
        except BaseException:
            source.close()
            raise

    def discard(self, key: str, cause: MissCause = "corrupt") -> None:
        """Count a miss, move the entry's file to the quarantine folder and delete its row.

        An entry that there was only no memory for (``alloc``) stays where it is.
        """
        self.count_miss(cause)
        log.warning(
            "a chunk's KV was not usable (%s) and is computed anew; `ragblend verify` and `repair` look at all of it",
            cause,
            extra={"entry": key[:12], "cause": cause, "tier": self.tier},
        )
        if cause == "alloc" or self.catalogue.read_only:
            return
        gone = cause == "missing"
        with contextlib.suppress(OSError):
            if not gone:
                self.files.make_private_folder(self.quarantine)
                self.files.rename(self._path(key), self.quarantine / f"{key}.{secrets.token_hex(8)}.safetensors")
                gone = True
        # A miss must not fail because somebody else is writing or the disk is full; without its file
        # the row is harmless.
        with contextlib.suppress(LibraryBusyError, StoreError, OSError), self.catalogue.transaction() as connection:
            put_again = gone and self.files.exists(self._path(key))
            if not put_again:
                self._delete_rows(connection, ("entries", "costs"), [key])

    def delete(self, key: str) -> None:
        self.forget([key])
        self.erase([key])

    def forget(self, keys: Iterable[str]) -> None:
        """Delete rows, as part of the caller's transaction if there is one. Their files become orphans."""
        self._require_writable()
        with self.catalogue.transaction() as connection:
            self._delete_rows(connection, ("entries", "costs", "evictions"), keys)

    def erase(self, keys: Iterable[str]) -> None:
        """Remove the files of forgotten entries, with their copies in quarantine."""
        self._require_writable()
        for key in keys:
            with file_errors(self.root):
                for path in (self._path(key), *self.quarantine.glob(f"{key}.*")):
                    self.remove_file(path)

    def remove_file(self, path: Path) -> None:
        """Remove a file of the store's folders, which then has room for others. Raises OSError."""
        size = size_of(path)
        self.files.remove(path)
        self._unrecorded.discard(path)
        self.room.quota.change(-size)

    def evict(self, keys: Sequence[str], reason: EvictionReason) -> None:
        """Drop entries to keep a limit. It is recorded which, so that they are not taken for lost ones.

        Files go before their rows: if this is interrupted, the disk holds less than the rows say, and never more.
        """
        if not keys:
            return
        self._require_writable()
        sizes = {entry.key: entry.nbytes for entry in self.entries()}
        with file_errors(self.root):
            for key in keys:
                self.remove_file(self._path(key))
        with self.catalogue.transaction() as connection:
            rows = [(key, self.namespace, time.time()) for key in keys]
            self._delete_rows(connection, ("entries", "costs"), keys)
            connection.executemany(
                "INSERT OR REPLACE INTO evictions (key, namespace, evicted_at) VALUES (?, ?, ?)", rows
            )
        nbytes = sum(sizes.get(key, 0) for key in keys)
        self.events.evicted(self.tier, reason, len(keys), nbytes)
        fields = {"entries": len(keys), "bytes": nbytes, "reason": reason, "tier": self.tier}
        log.info("%d entries evicted (%s)", len(keys), reason, extra=fields)

    def candidates(self) -> list[Candidate]:
        """Every entry without an open reader. One whose file is gone is used by nobody any more."""
        now, pinned = self.room.clock(), self.pins()
        found = []
        for entry in self.entries():
            if entry.key not in pinned:
                used_at, nbytes = self.last_use(entry.key)
                found.append(Candidate(entry.key, nbytes, entry.seconds, max(0.0, now - used_at)))
        return found

    def expired(self) -> list[str]:
        """Keys of the entries that nobody has used for the limits' time to live."""
        ttl_s = self.room.limits.ttl_s
        return [] if ttl_s is None else [each.key for each in self.candidates() if each.idle_s > ttl_s]

    def evicted(self) -> set[str]:
        """Keys of entries that were evicted and have not been put again."""
        return {key for (key,) in self._rows("SELECT key FROM evictions WHERE namespace = ?", self.namespace)}

    def last_use(self, key: str) -> tuple[float, int]:
        """When an entry was last opened or written, in seconds since the epoch, and what its file takes now.

        Without a file it was never used, and takes nothing.
        """
        try:
            status = self._path(key).lstat()
        except OSError:
            return -math.inf, 0
        return status.st_mtime, status.st_size

    def blob(self, key: str) -> bytes | None:
        """An entry's file as it lies on the disk, encrypted if the namespace is; None if it cannot be read."""
        try:
            source = FileSource(self._path(key), self.files)
            with contextlib.closing(source):
                return bytes(source.read(0, source.nbytes))
        except (EntryError, OSError):
            return None

    def read_ahead(self, key: str) -> None:
        """Have the operating system read an entry's file into its page cache. What fails is left to who needs it."""
        path = self._path(key)
        with contextlib.suppress(EntryError, OSError), contextlib.closing(FileSource(path, self.files)) as source:
            source.read_ahead()

    def check(self, key: str, token_ids: tuple[int, ...] | None = None) -> MissCause | None:
        """Read a recorded entry whole: None if it is sound, or why it would be a miss. Changes nothing.

        token_ids: what the entry should be of, if that is known.
        """
        self.values.require_key()
        try:
            with contextlib.closing(self._reader(key, FileSource(self._path(key), self.files))) as reader:
                if token_ids not in (None, reader.token_ids):
                    return "stale"
                for index in range(reader.layer_count):
                    reader.layer(index)
        except (EntryError, OSError) as error:
            return _miss_cause(error)
        return None

    def entries(self) -> list[Entry]:
        """All recorded entries of the namespace."""
        rows = self._rows(
            "SELECT entries.key, tokens, bytes, coalesce(seconds, 0.0) FROM entries"
            " LEFT JOIN costs ON costs.key = entries.key WHERE entries.namespace = ? ORDER BY entries.key",
            self.namespace,
        )
        return [Entry(*row) for row in rows]

    def orphans(self, minimum_age_s: float = 0.0) -> Iterator[Path]:
        """Files without a row: temporary ones, and those whose row was never committed or is deleted.

        Files younger than ``minimum_age_s`` are left out: a running indexer may be about to record them.
        """
        newest = time.time() - minimum_age_s
        recorded = {self._path(entry.key) for entry in self.entries()}
        for path in self.folder.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):  # renamed or removed meanwhile
                if path not in recorded and path.lstat().st_mtime <= newest:
                    yield path

    def dead_files(self) -> list[Path]:
        """Quarantined files and orphans: what limits make room with first. Sound only for who alone writes."""
        written = set(self._unrecorded)  # before the rows are read: it may be recorded meanwhile
        return [*self.quarantined(), *(path for path in self.orphans() if path not in written)]

    def quarantined(self) -> list[Path]:
        """Files set aside as damaged; they are kept to be looked at and may be removed."""
        return sorted(self.quarantine.glob("*"))

    def nbytes(self) -> int:
        [(total,)] = self._rows("SELECT COALESCE(SUM(bytes), 0) FROM entries WHERE namespace = ?", self.namespace)
        return int(total)

    def close(self) -> None:
        self._closed = True

    def _is_expired(self, used_at: float) -> bool:
        ttl_s = self.room.limits.ttl_s
        return ttl_s is not None and self.room.clock() - used_at > ttl_s

    def _path(self, key: str) -> Path:
        require(_KEY.fullmatch(key) is not None, f"an entry's key is 64 hexadecimal digits, got {key!r}")
        return self.folder / key[:2] / f"{key}.safetensors"

    def _entry(self, key: str) -> Entry | None:
        statement = "SELECT key, tokens, bytes FROM entries WHERE key = ? AND namespace = ?"
        for row in self._rows(statement, key, self.namespace):
            return Entry(*row)
        return None

    def _delete_rows(self, connection: Connection, tables: Iterable[str], keys: Iterable[str]) -> None:
        rows = [(key, self.namespace) for key in keys]
        for table in tables:
            connection.executemany(f"DELETE FROM {table} WHERE key = ? AND namespace = ?", rows)

    def _rows(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        self._require_open()
        return self.catalogue.rows(statement, *parameters)

    def _require_open(self) -> None:
        if self._closed:
            raise StoreError(f"{self.root}: the store is closed")

    def _require_writable(self) -> None:
        self._require_open()
        if self.catalogue.read_only:
            raise StoreError(f"{self.root}: opened read-only, entries cannot be written or deleted")


def _miss_cause(error: EntryError | OSError) -> MissCause:
    if isinstance(error, EntryError):
        return error.cause
    return "missing" if isinstance(error, FileNotFoundError) else "corrupt"
