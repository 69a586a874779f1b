"""Writing files so that they survive a crash, and folders that only their owner can enter."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def make_private_folder(folder: Path) -> None:
    """Create ``folder`` and its missing parents with mode 0700, durably."""
    if folder.is_dir():
        return
    make_private_folder(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    sync_folder(folder.parent)


def write_synced(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a new file of mode 0600 and wait until it is on the disk. Its name is not: sync the folder.

    Raises FileExistsError when ``path`` exists, OSError.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until the names in ``folder`` are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
