"""One writer at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ragblend.store.catalogue import BUSY_TIMEOUT_S, translated_errors


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Hold the library's writer lock for the block.

    An indexer writes for minutes, in many transactions; this keeps a second one from doing the same
    work, and ``gc`` from deleting what is about to be used. The lock is SQLite's on an empty
    database, so the death of its holder releases it. Raises LibraryBusyError when another process
    or thread keeps it for five seconds.
    """
    path.touch(mode=0o600)
    with closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection:
        with translated_errors(path):
            connection.execute("BEGIN EXCLUSIVE")
        yield
