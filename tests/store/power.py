"""A disk that forgets, at a loss of power, what it was not asked to sync."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.store.faults import WatchedFiles


class ForgetfulFiles(WatchedFiles):
    """Remembers what has been synced below ``root``; ``lose_power`` leaves the folder with only that.

    The catalogue is SQLite's and keeps its own promises, so files elsewhere are left alone. With
    ``keep_names`` names reach the disk at once and only bytes wait to be synced; otherwise neither
    does. A real disk does something in between.
    """

    def __init__(self, root: Path, *, keep_names: bool) -> None:
        super().__init__()
        self.root = root
        self.keep_names = keep_names
        self._data: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {}
        self._kept: list[int] = []  # descriptors, so that no inode's number is used again

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            self._names[path] = {child.name: child.lstat().st_ino for child in path.iterdir()}
        else:
            self._data[os.fstat(descriptor).st_ino] = path.read_bytes()
            self._kept.append(os.dup(descriptor))

    def lose_power(self) -> None:
        for folder in (self.root / "kv", self.root / "quarantine"):
            if folder.is_dir():
                self._forget(folder, known=folder.name in self._names.get(self.root, {}))
        for descriptor in self._kept:
            os.close(descriptor)

    def _forget(self, folder: Path, *, known: bool) -> None:
        if not (known or self.keep_names):
            shutil.rmtree(folder)
            return
        synced = self._names.get(folder, {})
        present = {child.name: child.lstat().st_ino for child in folder.iterdir()}
        for child in list(folder.iterdir()):
            if child.is_dir():
                self._forget(child, known=child.name in synced)
            elif self.keep_names or synced.get(child.name) == present[child.name]:
                child.write_bytes(self._data.get(present[child.name], b"\0" * child.stat().st_size))
            else:
                child.unlink()
        if not self.keep_names:
            for name in synced.keys() - {child.name for child in folder.iterdir()}:
                if synced[name] in self._data:  # its removal was not synced either
                    (folder / name).write_bytes(self._data[synced[name]])
