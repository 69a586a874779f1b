"""Where the bytes of one entry's file come from: an open file, memory, or either of them decrypted."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from pathlib import Path
from typing import Protocol

from ragblend.errors import CorruptEntryError, EntryAllocationError, EntryError
from ragblend.store.files import SYSTEM_FILES, Files

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_READ_AHEAD_BYTES = 1 << 20


class ByteSource(Protocol):
    """Random access to the bytes of one entry, from several threads at once. ``name`` is for messages."""

    name: str
    nbytes: int

    def read(self, begin: int, length: int) -> memoryview:
        """Exactly ``length`` bytes from ``begin``, in memory of the caller's own, at a torch allocation's alignment.

        Raises CorruptEntryError (the bytes are not there), EntryAllocationError.
        """
        ...

    def close(self) -> None: ...


class FileSource:
    """A regular file. Plain reads, never mmap: a file that is cut short while it is read gives
    CorruptEntryError, where a mapping would end the process with SIGBUS.

    Raises CorruptEntryError (something else has the file's name), EntryAllocationError (no handle left), OSError.
    """

    def __init__(self, path: Path, files: Files = SYSTEM_FILES) -> None:
        self.name = str(path)
        self._files = files
        try:
            self._file = io.FileIO(files.open(path))
        except OSError as error:
            if error.errno in _OUT_OF_RESOURCES:
                raise EntryAllocationError(f"{path}: cannot be opened now ({error.strerror})") from error
            raise
        status = os.fstat(self._file.fileno())
        self.nbytes = status.st_size
        self.modified_at = status.st_mtime
        if not stat.S_ISREG(status.st_mode):
            self._file.close()
            raise CorruptEntryError(f"{path}: not a regular file")

    def read(self, begin: int, length: int) -> memoryview:
        data = allocate(self.name, length, self._files)
        done = 0
        while done < length:
            try:
                count = self._files.read(self._file.fileno(), data[done:], begin + done)
            except OSError as error:
                kind: type[EntryError] = EntryAllocationError if error.errno in _OUT_OF_RESOURCES else CorruptEntryError
                raise kind(f"{self.name}: {error.strerror} at byte {begin + done:,}") from error
            if count == 0:
                raise CorruptEntryError(f"{self.name}: the file ends at byte {begin + done:,}")
            done += count
        return data

    def read_ahead(self) -> None:
        """Read the file in parts, so that the page cache has it whole. Raises EntryAllocationError, OSError."""
        part = allocate(self.name, min(self.nbytes, _READ_AHEAD_BYTES), self._files)
        begin = 0
        while begin < self.nbytes and (count := self._files.read(self._file.fileno(), part, begin)):
            begin += count

    def touch(self) -> None:
        """Note that the file is used now, in its modification time; in a folder that cannot be written, do not."""
        with contextlib.suppress(OSError):
            os.utime(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class MemorySource:
    """Bytes that were fetched whole, from a remote tier for one."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.nbytes = len(data)
        self._data = memoryview(data)

    def read(self, begin: int, length: int) -> memoryview:
        if begin + length > self.nbytes:
            raise CorruptEntryError(f"{self.name}: the data ends at byte {self.nbytes:,}")
        data = allocate(self.name, length)
        data[:] = self._data[begin : begin + length]
        return data

    def close(self) -> None:
        """Nothing is held beyond the bytes themselves."""


def allocate(name: str, length: int, files: Files = SYSTEM_FILES) -> memoryview:
    """Memory to read into. Raises EntryAllocationError."""
    try:
        return files.allocate(length)
    except MemoryError as error:
        raise EntryAllocationError(f"{name}: no memory for {length:,} bytes") from error
