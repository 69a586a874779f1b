"""How many bytes a namespace's files take, and how many must go before another one is written."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from ragblend.config import DiskLimits


class DiskQuota:
    """Counts the bytes of files, whoever left them there: entries, quarantined ones, leftovers of killed writers.

    It looks at the disk when it is first asked and after ``forget_measure``; in between it is told of every file
    that comes and goes. That is exact as long as nobody else writes, which the library's writer lock sees to.

    root: the library's folder. shared: the folders of all namespaces. The namespace's own are included one by one.
    """

    def __init__(self, limits: DiskLimits, root: Path, shared: tuple[Path, ...]) -> None:
        self.limits = limits
        self.root = root
        self.folders: tuple[Path, ...] = ()
        self._shared_folders = shared
        self._own: int | None = None
        self._others = 0

    def include(self, *folders: Path) -> None:
        """Count these folders as the namespace's own, too."""
        self.folders += folders
        self.forget_measure()

    @property
    def own(self) -> int:
        """Bytes of the namespace's files."""
        if self._own is None:
            self._own = bytes_below(self.folders)
            if self.limits.total_budget is not None:
                self._others = bytes_below(self._shared_folders) - self._own
        return self._own

    def forget_measure(self) -> None:
        """Look at the disk again when next asked: somebody else may have written, or been killed."""
        self._own = None

    def change(self, nbytes: int) -> None:
        """Files of so many bytes came, or went (negative)."""
        if self._own is not None:
            self._own += nbytes

    def excess(self, nbytes: int) -> int:
        """Bytes that have to go before ``nbytes`` may be written; none or fewer when there is room."""
        return max([self._below_floor(nbytes), *(used + nbytes - budget for used, budget in self.budgets())])

    def free(self) -> float:
        """Bytes that can be written before the high watermark, or the floor, is reached."""
        room = [self.limits.high_watermark * budget - used for used, budget in self.budgets()]
        return max(0.0, min([math.inf if not self.limits.free_space_floor else -self._below_floor(0), *room]))

    def to_free(self, nbytes: int) -> int:
        """Bytes to free before ``nbytes`` are written; 0 below the high watermark, else down to the low one."""
        limits = self.limits
        wanted = [0, self._below_floor(nbytes)]
        for used, budget in self.budgets():
            if used + nbytes > limits.high_watermark * budget:
                wanted.append(used + nbytes - int(limits.low_watermark * budget))
        return max(wanted)

    def budgets(self) -> Iterator[tuple[int, int]]:
        """Used bytes and the most that they may be, for the namespace and for the library."""
        if self.limits.budget is not None:
            yield self.own, self.limits.budget
        if self.limits.total_budget is not None:
            own = self.own
            yield own + self._others, self.limits.total_budget

    def _below_floor(self, nbytes: int) -> int:
        """Bytes by which the filesystem's free space would fall below its floor."""
        if not self.limits.free_space_floor:
            return 0
        return self.limits.free_space_floor + nbytes - shutil.disk_usage(self.root).free


def bytes_below(folders: tuple[Path, ...]) -> int:
    """Bytes of all files in folders; those that are not there have none."""
    total = 0
    for folder in folders:
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as found:
            for entry in found:
                with contextlib.suppress(FileNotFoundError):
                    if entry.is_dir(follow_symlinks=False):
                        total += bytes_below((Path(entry.path),))
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
    return total
