"""The SQLite catalogue: the only truth about what a library folder holds.

WAL with full synchronisation. Blobs are written and synced before the row that names them is
committed, so a row never names bytes that are not there.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ragblend.errors import LibraryBusyError, StoreError, StoreFormatError, StoreFullError

BUSY_TIMEOUT_S = 5.0

# Numbered by position: a catalogue of format n has had the first n migrations applied.
MIGRATIONS: tuple[str, ...] = (
    """
    CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE entries (
        key TEXT PRIMARY KEY,
        namespace TEXT NOT NULL,
        tokens INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        created_at REAL NOT NULL
    );
    CREATE TABLE documents (
        id INTEGER PRIMARY KEY,
        namespace TEXT NOT NULL,
        path TEXT NOT NULL,
        title TEXT NOT NULL,
        digest TEXT NOT NULL,
        indexed_at REAL NOT NULL,
        UNIQUE (namespace, path)
    );
    CREATE TABLE chunks (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        document_id INTEGER NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
        ordinal INTEGER NOT NULL,
        text TEXT NOT NULL,
        heading TEXT NOT NULL,
        start INTEGER NOT NULL,
        token_ids BLOB NOT NULL,
        embedding BLOB NOT NULL,
        entry_key TEXT NOT NULL,
        UNIQUE (document_id, ordinal)
    );
    CREATE INDEX chunks_entry_key ON chunks (entry_key);
    """,
)


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Turn sqlite3's errors into ours, with the cause and the next step."""
    try:
        yield
    except sqlite3.OperationalError as error:
        text = str(error)
        if "locked" in text or "busy" in text:
            raise LibraryBusyError(f"{path}: another process is writing; try again when it has finished") from error
        if "full" in text:
            raise StoreFullError(f"{path}: the disk is full; free some space and run the command again") from error
        raise StoreError(f"{path}: {text}") from error
    except sqlite3.DatabaseError as error:
        raise StoreError(
            f"{path} is damaged ({error}): restore it from a backup, or index the documents into a new folder"
        ) from error


class Catalogue:
    """One open catalogue, safe to share between threads (one statement at a time)."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        self.read_only = read_only
        self.lock = threading.RLock()
        with translated_errors(path):
            mode = "?mode=ro" if read_only else ""
            self.connection = sqlite3.connect(
                f"{path.resolve().as_uri()}{mode}",
                uri=True,
                timeout=BUSY_TIMEOUT_S,
                isolation_level=None,
                check_same_thread=False,
            )
            self.connection.execute("PRAGMA foreign_keys = ON")
            if not read_only:
                self.connection.execute("PRAGMA journal_mode = WAL")
                self.connection.execute("PRAGMA synchronous = FULL")
            self._migrate()

    def _migrate(self) -> None:
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise StoreFormatError(
                f"{self.path} has format {version}, this ragblend reads up to {len(MIGRATIONS)}: upgrade ragblend"
            )
        if version == len(MIGRATIONS) or self.read_only:
            return
        with self.transaction():
            (version,) = self.connection.execute("PRAGMA user_version").fetchone()
            for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
                for statement in statements.split(";"):
                    self.connection.execute(statement)
                self.connection.execute(f"PRAGMA user_version = {number}")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block in one immediate transaction: all of it is kept, or none."""
        with self.lock, translated_errors(self.path):
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
            except BaseException:
                self.connection.execute("ROLLBACK")
                raise
            self.connection.execute("COMMIT")

    def rows(self, statement: str, *parameters: object) -> list[tuple[object, ...]]:
        """All rows of a reading statement."""
        with self.lock, translated_errors(self.path):
            return self.connection.execute(statement, parameters).fetchall()

    def setting(self, name: str) -> str | None:
        found = self.rows("SELECT value FROM settings WHERE name = ?", name)
        return str(found[0][0]) if found else None

    def close(self) -> None:
        with self.lock:
            self.connection.close()
