"""Chunk KV in a folder: one immutable file per entry, named by a row of the catalogue.

A file is written under a unique temporary name, synced, renamed, and its folder synced, before the
row is committed. Whatever is interrupted leaves at most a file without a row (``orphans``), which is
never served; a row whose file is missing or damaged is a miss, and the entry is set aside.
"""

from __future__ import annotations

import contextlib
import errno
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragblend.config import DEFAULT_NAMESPACE, require
from ragblend.errors import EntryError, LibraryBusyError, StoreError, StoreFullError
from ragblend.store.base import ChunkKV, KVStore, MissCause
from ragblend.store.catalogue import Catalogue
from ragblend.store.files import SYSTEM_FILES, Files
from ragblend.store.format import encode_chunk
from ragblend.store.key import digest_fields
from ragblend.store.reader import ChunkReader

_KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Entry:
    """What the catalogue says of an entry. ``nbytes`` is the size of its file."""

    key: str
    tokens: int
    nbytes: int


class DiskStore(KVStore):
    """The entries of one namespace in the folder ``root``, recorded in ``catalogue``.

    The catalogue is shared with the library and is not closed with the store. With a read-only
    catalogue nothing in the folder is changed. Keys are hex SHA-256; writing under another raises
    ConfigError.

    ``put`` commits one entry. To commit many at once, or together with other rows, write the files
    first and record them in one transaction::

        entries = [store.write_blob(key, kv) for key, kv in computed]
        with catalogue.transaction():
            store.record(entries)
            ...

    and to delete in a transaction, ``forget`` in it and ``erase`` after it.
    """

    def __init__(
        self, root: Path, catalogue: Catalogue, namespace: str = DEFAULT_NAMESPACE, files: Files = SYSTEM_FILES
    ) -> None:
        super().__init__()
        self.files = files
        self.root = root
        self.namespace = namespace
        digest = digest_fields(namespace)
        self.folder = root / "kv" / digest
        self.quarantine = root / "quarantine" / digest
        self.catalogue = catalogue
        self._closed = False

    def contains(self, key: str) -> bool:
        return self._entry(key) is not None

    def put(self, key: str, kv: ChunkKV) -> int:
        entry = self._entry(key)
        with self._translated_errors(0):
            there = entry is not None and self.files.exists(self._path(key))
        if entry is None or not there:
            entry = self.write_blob(key, kv)
            self.record([entry])
        return entry.nbytes

    def write_blob(self, key: str, kv: ChunkKV) -> Entry:
        """Write an entry's file durably, without a row: it is served once ``record`` is committed.

        Raises StoreFullError, StoreError; ConfigError for NaN or Inf.
        """
        self._require_writable()
        path = self._path(key)
        pieces = encode_chunk(key, kv)
        nbytes = sum(len(piece) for piece in pieces)
        with self._translated_errors(nbytes):
            self.files.make_private_folder(path.parent)
            self.files.write_whole(path, pieces)
        return Entry(key, len(kv.token_ids), nbytes)

    def record(self, entries: Iterable[Entry]) -> None:
        """Commit the rows of written files, as part of the caller's transaction if there is one."""
        self._require_writable()
        now = time.time()
        with self.catalogue.transaction() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO entries (key, namespace, tokens, bytes, created_at) VALUES (?, ?, ?, ?, ?)",
                [(entry.key, self.namespace, entry.tokens, entry.nbytes, now) for entry in entries],
            )

    def open(self, key: str, token_ids: tuple[int, ...]) -> ChunkReader | None:
        if self._entry(key) is None:
            self.count_miss("missing")
            return None
        try:
            reader = ChunkReader(self._path(key), key, self.files)
        except (EntryError, OSError) as error:
            self.discard(key, _miss_cause(error))
            return None
        if reader.token_ids != token_ids:  # whole and under its own key, so it stays
            reader.close()
            self.count_miss("stale")
            return None
        return reader

    def discard(self, key: str, cause: MissCause = "corrupt") -> None:
        """Count a miss, move the entry's file to the quarantine folder and delete its row.

        An entry that there was only no memory for (``alloc``) stays where it is.
        """
        self.count_miss(cause)
        if cause == "alloc" or self.catalogue.read_only:
            return
        with contextlib.suppress(OSError):
            self.files.make_private_folder(self.quarantine)
            self.files.rename(self._path(key), self.quarantine / f"{key}.{secrets.token_hex(8)}.safetensors")
        # A miss must not fail because somebody else is writing or the disk is full; without its file
        # the row is harmless.
        with contextlib.suppress(LibraryBusyError, StoreError):
            self.forget([key])

    def delete(self, key: str) -> None:
        self.forget([key])
        self.erase([key])

    def forget(self, keys: Iterable[str]) -> None:
        """Delete rows, as part of the caller's transaction if there is one. Their files become orphans."""
        self._require_writable()
        with self.catalogue.transaction() as connection:
            connection.executemany(
                "DELETE FROM entries WHERE key = ? AND namespace = ?", [(key, self.namespace) for key in keys]
            )

    def erase(self, keys: Iterable[str]) -> None:
        """Remove the files of forgotten entries, with their copies in quarantine."""
        self._require_writable()
        for key in keys:
            with self._translated_errors(0):
                for path in (self._path(key), *self.quarantine.glob(f"{key}.*")):
                    self.files.remove(path)

    def check(self, key: str, token_ids: tuple[int, ...] | None = None) -> MissCause | None:
        """Read a recorded entry whole: None if it is sound, or why it would be a miss. Changes nothing.

        token_ids: what the entry should be of, if that is known.
        """
        try:
            with contextlib.closing(ChunkReader(self._path(key), key, self.files)) as reader:
                if token_ids not in (None, reader.token_ids):
                    return "stale"
                for index in range(reader.layer_count):
                    reader.layer(index)
        except (EntryError, OSError) as error:
            return _miss_cause(error)
        return None

    def entries(self) -> list[Entry]:
        """All recorded entries of the namespace."""
        rows = self._rows("SELECT key, tokens, bytes FROM entries WHERE namespace = ? ORDER BY key", self.namespace)
        return [Entry(key, tokens, nbytes) for key, tokens, nbytes in rows]

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

    def quarantined(self) -> list[Path]:
        """Files set aside as damaged; they are kept to be looked at and may be removed."""
        return sorted(self.quarantine.glob("*"))

    def nbytes(self) -> int:
        [(total,)] = self._rows("SELECT COALESCE(SUM(bytes), 0) FROM entries WHERE namespace = ?", self.namespace)
        return int(total)

    def close(self) -> None:
        self._closed = True

    def _path(self, key: str) -> Path:
        require(_KEY.fullmatch(key) is not None, f"an entry's key is 64 hexadecimal digits, got {key!r}")
        return self.folder / key[:2] / f"{key}.safetensors"

    def _entry(self, key: str) -> Entry | None:
        statement = "SELECT tokens, bytes FROM entries WHERE key = ? AND namespace = ?"
        for tokens, nbytes in self._rows(statement, key, self.namespace):
            return Entry(key, tokens, nbytes)
        return None

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

    @contextlib.contextmanager
    def _translated_errors(self, nbytes: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFullError(
                    f"{self.root}: no room for {nbytes:,} bytes of chunk KV: free some space and run the command again"
                ) from error
            raise StoreError(
                f"{self.root}: chunk KV cannot be written ({error.strerror}): check the folder's disk and permissions"
            ) from error


def _miss_cause(error: EntryError | OSError) -> MissCause:
    if isinstance(error, EntryError):
        return error.cause
    return "missing" if isinstance(error, FileNotFoundError) else "corrupt"
