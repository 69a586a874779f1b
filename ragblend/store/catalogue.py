"""The SQLite catalogue: the only truth about what a library folder holds.

WAL with full synchronisation. Blobs are written and synced before the row that names them is
committed, so a row never names bytes that are not there.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ragblend.errors import LibraryBusyError, StoreError, StoreFormatError, StoreFullError
from ragblend.store.migrations import MIGRATIONS
from ragblend.store.rows import CHECKED, add_function, is_sound

BUSY_TIMEOUT_S = 5.0
# The folder beside a catalogue with the files that its rows name.
KV_FOLDER = "kv"
# What Python says of a text that is not UTF-8, where it reads a row and where our function is given one.
_SIGNS_OF_DAMAGE = ("Could not decode to UTF-8", "user-defined function raised exception")


def damaged(path: Path, problem: object) -> StoreError:
    """The error for a catalogue that is not what was written."""
    return StoreError(
        f"{path} is damaged ({problem}): restore it from a backup, or index the documents into a new folder"
    )


def is_made(path: Path) -> bool:
    """Whether there is a catalogue at ``path``, not only what is left where making it did not finish.

    True also where it cannot be read: opening it says why.
    """
    if not path.is_file():
        return False
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error:
        return True
    return bool(version)


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Turn sqlite3's errors into ours, with the cause and the next step."""
    try:
        yield
    except sqlite3.ProgrammingError as error:
        closed = "closed database" in str(error)
        problem = f"the library at {path.parent} is closed: open it again" if closed else f"{path}: {error}"
        raise StoreError(problem) from error
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise LibraryBusyError(f"{path}: another process is writing; try again when it has finished") from error
        if code == sqlite3.SQLITE_FULL:
            raise StoreFullError(f"{path}: the disk is full; free some space and run the command again") from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise damaged(path, error) from error
        if code == sqlite3.SQLITE_ERROR and any(sign in str(error) for sign in _SIGNS_OF_DAMAGE):
            raise damaged(path, "its text cannot be read") from error
        raise StoreError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:  # SQLite quotes what it could not make sense of
        raise damaged(path, "its text cannot be read") from error


class Catalogue:
    """One open catalogue, safe to share between threads (one statement at a time).

    ``read_only`` works in folders that cannot be written too. Raises StoreError for a file that is
    absent (read-only), damaged or unreadable, StoreFormatError for one of another format, and
    LibraryBusyError when another process keeps writing for ``busy_timeout_s`` seconds.
    """

    def __init__(self, path: Path, *, read_only: bool = False, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self.path = path
        self.read_only = read_only
        self.busy_timeout_s = busy_timeout_s
        self.lock = threading.RLock()
        self.files_lock = threading.Lock()
        with translated_errors(path):
            self.connection = self._connect_read_only() if read_only else self._connect()
            try:
                self._migrate()
                if _schema(self.connection) != _expected_schema(MIGRATIONS):
                    raise damaged(path, f"its tables are not those of format {len(MIGRATIONS)}")
            except BaseException:
                self.connection.close()
                raise

    def _connect(self) -> sqlite3.Connection:
        try:  # before SQLite makes it readable to others; its journals take over the file's mode
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreError(
                f"{self.path}: cannot be opened for writing ({error.strerror}): make it writable, or name another"
            ) from error
        connection = self._open_database("rw")
        try:
            _enter_wal(connection, self.busy_timeout_s)
            connection.execute("PRAGMA synchronous = FULL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_read_only(self) -> sqlite3.Connection:
        """Readers of a WAL database write to its index, so a read-only folder needs another way in.

        Nobody can be writing to such a folder, and the file is read as immutable: sound only
        without a journal, whose commits would be ignored.
        """
        if not self.path.is_file():
            raise StoreError(f"{self.path}: no such file")
        connection = self._open_database("ro")
        try:
            connection.execute("PRAGMA schema_version").fetchone()
        except sqlite3.OperationalError as error:
            connection.close()
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise
            journal = self.path.with_name(f"{self.path.name}-wal")
            if journal.exists() and journal.stat().st_size:
                raise StoreError(
                    f"{self.path}: the folder is read-only and the last writer did not finish; "
                    "open it once where it can be written"
                ) from error
            connection = self._open_database("ro&immutable=1")
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_database(self, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self.path.resolve().as_uri()}?mode={mode}",
            uri=True,
            timeout=self.busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
        )
        for setting in ("foreign_keys", "cell_size_check", "trusted_schema"):  # the last for our triggers' function
            connection.execute(f"PRAGMA {setting} = ON")
        add_function(connection)
        return connection

    def _migrate(self) -> None:
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            raise StoreFormatError(
                f"{self.path} has format {version}, this ragblend reads up to {len(MIGRATIONS)}: upgrade ragblend"
            )
        if version == len(MIGRATIONS):
            return
        if not version and any((self.path.parent / KV_FOLDER).glob("*")):
            raise damaged(self.path, f"it is empty, and there are files in {KV_FOLDER}/")
        if not version and self.read_only:
            raise StoreError(f"{self.path} is empty, as it is until a library is made: index documents into it")
        if self.read_only:
            raise StoreFormatError(
                f"{self.path} has the older format {version}: "
                f"bring it up to date with `ragblend gc --library {shlex.quote(str(self.path.parent))}`"
            )
        with self.transaction():
            (version,) = self.connection.execute("PRAGMA user_version").fetchone()
            if version:
                self._require_structure()
            for number, script in enumerate(MIGRATIONS[version:], start=version + 1):
                for statement in _statements(script):
                    self.connection.execute(statement)
                self.connection.execute(f"PRAGMA user_version = {number}")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block in one immediate transaction: all of it is kept, or none.

        Inside another transaction of the same thread the block becomes part of that one.
        """
        with self.lock, translated_errors(self.path):
            if self.connection.in_transaction:
                yield self.connection
                return
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                if self.connection.in_transaction:  # SQLite itself rolls back after some errors, a full disk for one
                    self.connection.execute("ROLLBACK")
                raise

    def rows(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """All rows of a reading statement."""
        with self.lock, translated_errors(self.path):
            return self.connection.execute(statement, parameters).fetchall()

    def sound_rows(
        self, tables: Sequence[str], columns: str, source: str, *parameters: object
    ) -> list[tuple[Any, ...]]:
        """All rows of ``SELECT columns source``, each checked in every one of ``tables`` that it is of.

        Raises StoreError when one is not what was written.
        """
        sound = " AND ".join(map(is_sound, tables))
        found = self.rows(f"SELECT {sound}, {columns} {source}", *parameters)
        if not all(row[0] for row in found):
            raise damaged(self.path, f"a row of {' or '.join(tables)} does not match its checksum")
        return [row[1:] for row in found]

    def setting(self, name: str) -> str | None:
        found = self.sound_rows(["settings"], "value", "FROM settings WHERE name = ?", name)
        return str(found[0][0]) if found else None

    def set(self, values: Mapping[str, str], *, keep: bool = False) -> None:
        """Write settings, as part of the caller's transaction if there is one. keep: not those that are there."""
        verb = "IGNORE" if keep else "REPLACE"
        with self.transaction() as connection:
            connection.executemany(f"INSERT OR {verb} INTO settings (name, value) VALUES (?, ?)", values.items())

    def unset(self, names: Iterable[str]) -> None:
        """Delete settings, as part of the caller's transaction if there is one."""
        with self.transaction() as connection:
            connection.executemany("DELETE FROM settings WHERE name = ?", [(name,) for name in names])

    def counter(self, name: str) -> int:
        """How often ``count`` was called: the setting by which readers notice a change."""
        return int(self.setting(name) or 0)

    def count(self, name: str) -> None:
        """Count a change, as part of the caller's transaction if there is one."""
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO settings (name, value) VALUES (?, '1')"
                " ON CONFLICT (name) DO UPDATE SET value = CAST(value AS INTEGER) + 1",
                (name,),
            )

    def next_id(self, table: str) -> int:
        """The id for a new row of ``table``, in the caller's transaction. Those of chunks and texts come once only."""
        there = f"SELECT max(id) FROM {table}"
        ever = "SELECT seq FROM sqlite_sequence WHERE name = ?"
        [(last,)] = self.rows(f"SELECT max(coalesce(({there}), 0), coalesce(({ever}), 0))", table)
        return int(last) + 1

    def rewrite(self) -> None:
        """Write the file anew, so that nothing is left in it of what was deleted or replaced.

        Raises LibraryBusyError while others read, StoreFullError.
        """
        with self.lock, translated_errors(self.path):
            self.connection.execute("VACUUM")
            busy, *_ = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                raise LibraryBusyError(f"{self.path}: another process is reading; try again when it has finished")

    def verify(self) -> None:
        """Check SQLite's structures and all rows. Raises StoreError for damage."""
        with self.lock:
            self._require_structure()
            for table in CHECKED:
                [(count,)] = self.rows(f"SELECT count(*) FROM {table} WHERE NOT {is_sound(table)}")
                if count:
                    raise damaged(self.path, f"{count:,} rows of {table} do not match their checksums")

    def _require_structure(self) -> None:
        for pragma in ("integrity_check(1)", "foreign_key_check"):
            problems = self.rows(f"PRAGMA {pragma}")
            if problems not in ([], [("ok",)]):
                raise damaged(self.path, " ".join(map(str, problems[0])))

    def close(self) -> None:
        with self.lock:
            self.connection.close()


def _enter_wal(connection: sqlite3.Connection, busy_timeout_s: float) -> None:
    """Switch to WAL. SQLite does not wait here for another process that is doing the same, so we do."""
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one; a trigger is one, with the statements in it."""
    statement = ""
    for part in script.split(";"):
        statement += f"{part};"
        if sqlite3.complete_statement(statement):
            if statement.strip(" \n;"):
                yield statement
            statement = ""


def _schema(connection: sqlite3.Connection) -> set[tuple[str, ...]]:
    """Everything that a database is made of: kind, name, table and SQL."""
    rows = connection.execute(
        "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master WHERE substr(name, 1, 7) <> 'sqlite_'"
    )
    return {(kind, name, table, " ".join(sql.split())) for kind, name, table, sql in rows}


@cache
def _expected_schema(migrations: tuple[str, ...]) -> frozenset[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        add_function(connection)
        for script in migrations:
            connection.executescript(script)
        return frozenset(_schema(connection))
