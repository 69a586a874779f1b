"""Files that survive a crash, and folders that only their owner can enter.

``Files`` is everything that a store does to files. A store is given one, so that tests can give it
one that fails, stops or forgets at any step.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

from ragblend.errors import StoreError, StoreFullError


class Files:
    """The operating system's own operations, one call each, and what is made of them."""

    def create(self, path: Path) -> int:
        """A descriptor for writing a new file of mode 0600. Raises FileExistsError when ``path`` exists."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def open(self, path: Path) -> int:
        """A descriptor for reading. Links are not followed, and a pipe in the file's place does not block."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of ``data`` and return how many bytes."""
        return os.write(descriptor, data)

    def read(self, descriptor: int, buffer: memoryview, offset: int) -> int:
        """Read into ``buffer`` from ``offset`` on; how many bytes, 0 at the file's end."""
        return os.preadv(descriptor, [buffer], offset)

    def allocate(self, length: int) -> memoryview:
        """Private memory to read into, at a torch allocation's alignment. Raises MemoryError."""
        try:
            return torch.empty(length, dtype=torch.uint8).numpy().data
        except RuntimeError as error:  # torch's way to say so
            raise MemoryError(str(error)) from error

    def sync(self, descriptor: int) -> None:
        """Wait until a file's bytes, or a folder's names, are on the disk."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, in place of what has it."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Remove a file; one that is not there is no error."""
        path.unlink(missing_ok=True)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def make_folder(self, folder: Path) -> None:
        """Create a folder of mode 0700. Raises FileExistsError."""
        folder.mkdir(mode=0o700)

    def sync_folder(self, folder: Path) -> None:
        """Wait until the names in ``folder`` are on the disk."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sync(descriptor)
        finally:
            os.close(descriptor)

    def make_private_folder(self, folder: Path) -> None:
        """Create ``folder`` and its missing parents with mode 0700, durably."""
        if folder.is_dir():
            return
        self.make_private_folder(folder.parent)
        with contextlib.suppress(FileExistsError):
            self.make_folder(folder)
        self.sync_folder(folder.parent)

    def write_whole(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        """Write a file whole and durably, or not at all; what has the name ``path`` is replaced.

        It is written under a ``.tmp`` name that nobody else uses, synced and renamed, and its folder
        synced. Raises OSError.
        """
        temporary = path.with_name(f"{path.stem}.{secrets.token_hex(8)}.tmp")
        try:
            self._write_synced(temporary, pieces)
            self.rename(temporary, path)
            self.sync_folder(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(temporary)
            raise

    def _write_synced(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        """Write a new file and wait until its bytes are on the disk; its name is not yet."""
        descriptor = self.create(path)
        try:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[self.write(descriptor, rest) :]
            self.sync(descriptor)
        finally:
            self.close(descriptor)


SYSTEM_FILES = Files()


def size_of(path: Path) -> int:
    """Bytes of a file; 0 if it is not there."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


@contextlib.contextmanager
def file_errors(root: Path, nbytes: int = 0) -> Iterator[None]:
    """Turn the operating system's errors into StoreFullError and StoreError. nbytes: what was to be written."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFullError(
                f"{root}: no room for {nbytes:,} bytes of chunk KV: free some space and run the command again"
            ) from error
        raise StoreError(
            f"{root}: chunk KV cannot be written ({error.strerror}): check the folder's disk and permissions"
        ) from error
