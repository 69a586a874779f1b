"""Slow storage, simulated: what loading costs does not have to be guessed from a fast disk."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from ragblend.config import require
from ragblend.kernels.layout import LayerKV
from ragblend.store.base import KVReader, WrappedReader
from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore

# Linux's default read-ahead, 128 KiB, for each of 16 files.
_READ_AHEAD_BYTES = 16 * (128 << 10)


class SlowDiskStore(DiskStore):
    """A disk store whose entries' layers come at ``bytes_s`` bytes a second, all readers together.

    Opening an entry is as fast as ever. Behind its first layer the device reads ahead of who is not asking just now,
    by 2 MiB at most. Raises ConfigError for a rate that is not positive.
    """

    def __init__(self, root: Path, catalogue: Catalogue, bytes_s: float, codec: str = "raw") -> None:
        require(bytes_s > 0, f"storage must give more than 0 bytes a second, got {bytes_s}")
        super().__init__(root, catalogue, codec=codec)
        self._device = _Device(bytes_s)

    def open(self, key: str, token_ids: tuple[int, ...]) -> KVReader | None:
        reader = super().open(key, token_ids)
        return None if reader is None else _SlowReader(reader, self._device)


class _Device:
    """Gives so many bytes a second, to one reader after another."""

    def __init__(self, bytes_s: float) -> None:
        self._bytes_s = bytes_s
        self._free_at = 0.0
        self._lock = threading.Lock()

    def deliver(self, nbytes: int, asked_at: float, *, follows: bool) -> None:
        """Return when bytes that were asked for at ``asked_at`` (time.perf_counter) would have come.

        follows: whether the device could know that they would be asked for, and begin before.
        """
        with self._lock:
            ahead_s = _READ_AHEAD_BYTES / self._bytes_s if follows else 0.0
            self._free_at = max(self._free_at, asked_at - ahead_s) + nbytes / self._bytes_s
            due = self._free_at
        time.sleep(max(0.0, due - time.perf_counter()))


class _SlowReader(WrappedReader):
    def __init__(self, reader: KVReader, device: _Device) -> None:
        super().__init__(reader)
        self._device = device

    def layer(self, index: int) -> LayerKV:
        asked_at = time.perf_counter()
        layer = super().layer(index)
        self._device.deliver(layer.nbytes, asked_at, follows=index > 0)
        return layer
