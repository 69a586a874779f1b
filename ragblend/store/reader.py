"""Reads one chunk KV file, a layer at a time, checked before any byte is handed out.

Plain reads into private memory, never mmap: a file that is cut short while it is read gives
CorruptEntryError, where a mapping would end the process with SIGBUS.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path

import torch

from ragblend.errors import CorruptEntryError, EntryAllocationError, EntryError
from ragblend.store.base import LayerKV
from ragblend.store.files import SYSTEM_FILES, Files
from ragblend.store.format import DTYPES, MAX_HEADER_BYTES, Span, checksum, decode_header, is_finite

_OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class ChunkReader:
    """An open file of one entry (a KVReader). Layers may be read from several threads at once.

    Raises CorruptEntryError (StaleEntryError for another format version or key) when the header or
    the token ids are damaged, EntryAllocationError when no memory or file handle is left, and OSError
    when the file cannot be opened.
    """

    def __init__(self, path: Path, key: str, files: Files = SYSTEM_FILES) -> None:
        self.path = path
        self.key = key
        self._files = files
        try:
            self._file = io.FileIO(files.open(path))
        except OSError as error:
            if error.errno in _OUT_OF_RESOURCES:
                raise EntryAllocationError(f"{path}: cannot be opened now ({error.strerror})") from error
            raise
        try:
            status = os.fstat(self._file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise CorruptEntryError(f"{path}: not a regular file")
            header_bytes = int.from_bytes(self._read(0, 8), "little")
            if not 2 <= header_bytes <= min(MAX_HEADER_BYTES, status.st_size - 8):
                raise CorruptEntryError(f"{path}: the header's length is damaged")
            self._layout = decode_header(key, bytes(self._read(8, header_bytes)), status.st_size)
            self.token_ids = tuple(self._read_tensor(self._layout.token_ids).view(torch.int32).tolist())
        except BaseException:
            self._file.close()
            raise

    @property
    def tokens(self) -> int:
        return len(self.token_ids)

    @property
    def layer_count(self) -> int:
        return len(self._layout.layers)

    def layer(self, index: int) -> LayerKV:
        """Read one layer with one contiguous read, into memory of its own.

        Raises CorruptEntryError when the bytes are not what was written, EntryAllocationError.
        """
        span = self._layout.layers[index]
        tensor = self._read_tensor(span).view(DTYPES[span.dtype]).view(span.shape)
        if not is_finite(tensor):
            raise CorruptEntryError(f"{self.path}: {span.name} holds NaN or Inf")
        return LayerKV(tensor[0], tensor[1])

    def close(self) -> None:
        self._file.close()

    def _read_tensor(self, span: Span) -> torch.Tensor:
        data = self._read(span.begin, span.nbytes)
        if checksum(self.key, span.name, span.dtype, span.shape, [data]) != span.checksum:
            raise CorruptEntryError(f"{self.path}: {span.name} does not match its checksum")
        return torch.frombuffer(data, dtype=torch.uint8)

    def _read(self, begin: int, length: int) -> memoryview:
        """Exactly ``length`` bytes from ``begin``, at a torch allocation's alignment."""
        try:
            data = self._files.allocate(length)
        except MemoryError as error:
            raise EntryAllocationError(f"{self.path}: no memory for {length:,} bytes") from error
        done = 0
        while done < length:
            try:
                count = self._files.read(self._file.fileno(), data[done:], begin + done)
            except OSError as error:
                raise _read_error(error)(f"{self.path}: {error.strerror} at byte {begin + done:,}") from error
            if count == 0:
                raise CorruptEntryError(f"{self.path}: the file ends at byte {begin + done:,}")
            done += count
        return data


def _read_error(error: OSError) -> type[EntryError]:
    return EntryAllocationError if error.errno in _OUT_OF_RESOURCES else CorruptEntryError
