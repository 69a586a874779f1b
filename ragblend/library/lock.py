"""One writer at a time."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ragblend.errors import LibraryBusyError
from ragblend.store.catalogue import BUSY_TIMEOUT_S, translated_errors


@contextmanager
def writing(path: Path) -> Iterator[bool]:
    """Hold the library's writer lock for the block, which is told whether its last holder was killed.

    An indexer writes for minutes, in many transactions; this keeps a second one from doing the same
    work, and ``gc`` from deleting what is about to be used. The lock is SQLite's on an empty
    database, so the death of its holder releases it. Where locks do not work, as on some network
    filesystems, entries stay whole: files are never changed under their names.

    Raises LibraryBusyError, saying who holds it, when another process or thread keeps it for five seconds.
    """
    holder = path.with_suffix(".holder")
    path.touch(mode=0o600)
    with closing(sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection:
        try:
            with translated_errors(path):
                connection.execute("BEGIN EXCLUSIVE")
        except LibraryBusyError as error:
            raise LibraryBusyError(
                f"{path.parent}: {_read(holder)} is writing; try again when it has finished"
            ) from error
        interrupted = holder.exists()
        _write(holder)
        try:
            yield interrupted
        finally:
            with contextlib.suppress(OSError):
                holder.unlink()


def _write(holder: Path) -> None:
    """Say who holds the lock. It only helps a message, so a full disk is no reason to fail."""
    with contextlib.suppress(OSError):
        holder.touch(mode=0o600)
        holder.write_text(json.dumps({"process": os.getpid(), "host": socket.gethostname(), "since": time.time()}))


def _read(holder: Path) -> str:
    try:
        held = json.loads(holder.read_text())
        since = time.strftime("%H:%M:%S", time.localtime(held["since"]))
        return f"process {int(held['process'])} on {held['host']} (since {since})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
