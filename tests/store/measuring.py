"""How many bytes lie on a disk while a store works."""

from __future__ import annotations

from pathlib import Path

from ragblend.store.files import Files


class MeasuringFiles(Files):
    """Looks after every operation how many bytes lie below ``folders``, half-written files included."""

    def __init__(self, *folders: Path) -> None:
        self.folders = folders
        self.most = 0

    def look(self) -> None:
        files = (path for folder in self.folders for path in folder.rglob("*") if path.is_file())
        self.most = max(self.most, sum(path.stat().st_size for path in files))

    def write(self, descriptor: int, data: memoryview) -> int:
        written = super().write(descriptor, data[:1000])
        self.look()
        return written

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self.look()
