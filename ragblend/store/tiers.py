"""A disk store with faster tiers in front of it and a slower one behind it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ragblend.errors import StoreError
from ragblend.kernels.layout import LayerKV
from ragblend.store.base import ChunkKV, KVReader, KVStore, MissCause, WrappedReader, read_whole
from ragblend.store.catalogue import Catalogue
from ragblend.store.device import DeviceStore
from ragblend.store.disk import DiskStore, Entry
from ragblend.store.memory import MemoryReader, MemoryStore
from ragblend.store.outbox import Outbox
from ragblend.store.remote import RemoteStore
from ragblend.store.sync import RemoteSync


class TieredStore(DiskStore):
    """Reads through a device's memory, the host's, disk and a remote tier, in this order.

    device, memory: filled with what is read; they are no copy of the disk. What was found further out climbs by one
    tier with each reading, so that only what is read again takes memory of the device. remote: gets what is recorded on
    the disk and forgets what is forgotten, in the background and through the catalogue's outbox. A remote tier that
    fails costs hits.
    remembers: keep the outbox although no remote tier is open, for when there is one again.
    shared: another namespace's store, which is only read. exclusive: the library's writer lock, for writing what was
    fetched while a question was answered.

    The tiers belong to the store and are closed with it. The other arguments are the disk store's.
    """

    def __init__(
        self,
        root: Path,
        catalogue: Catalogue,
        *arguments: Any,
        device: DeviceStore | None = None,
        memory: MemoryStore | None = None,
        remote: RemoteStore | None = None,
        remembers: bool = False,
        shared: DiskStore | None = None,
        exclusive: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        **options: Any,
    ) -> None:
        super().__init__(root, catalogue, *arguments, **options)
        self.device = device
        self.memory = memory
        self._near = [tier for tier in (device, memory) if tier is not None]
        self.remote = remote
        self.exclusive = exclusive
        self.shared = shared
        told = (remembers or remote is not None) and not catalogue.read_only
        self.outbox = Outbox(catalogue, self.namespace) if told else None
        self._sync = RemoteSync(self, remote, self.outbox) if remote and self.outbox else None
        if self._sync and self.outbox and self.outbox.count():
            self._sync.wake()

    def open(self, key: str, token_ids: tuple[int, ...]) -> KVReader | None:
        nearer = None
        for tier in self._near:
            reader = tier.open(key, token_ids)
            if reader is not None:
                return reader if nearer is None else _ClimbingReader(reader, key, token_ids, tier, nearer)
            nearer = tier
        reader = super().open(key, token_ids)
        if reader is not None:
            return reader if nearer is None else _ClimbingReader(reader, key, token_ids, self, nearer)
        if self.shared is not None and self.shared.contains(key):
            return self.shared.open(key, token_ids)
        kv = self._fetch(key, token_ids)
        if kv is None:
            return None
        if self._sync:
            self._sync.keep(key, kv)
        return MemoryReader(kv)

    def obtain(self, key: str, token_ids: tuple[int, ...]) -> bool:
        if self.contains(key):
            return True
        kv = self._fetch(key, token_ids)
        if kv is None:
            return False
        self.adopt(key, kv)
        return True

    def adopt(self, key: str, kv: ChunkKV) -> None:
        """Put an entry that came from the remote tier, which need not be told of it."""
        if not self.contains(key):
            super().record([self.write_blob(key, kv)])

    def record(self, entries: Iterable[Entry]) -> None:
        entries = list(entries)
        with self.catalogue.transaction():
            super().record(entries)
            if self.outbox:
                self.outbox.add("upload", [entry.key for entry in entries])
        if self._sync:
            self._sync.wake()

    def forget(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        with self.catalogue.transaction():
            super().forget(keys)
            if self.outbox:
                self.outbox.add("delete", keys)
        if self._sync and keys:
            self._sync.wake()
        self._drop_copies(keys)

    def discard(self, key: str, cause: MissCause = "corrupt") -> None:
        self._drop_copies([key])
        super().discard(key, cause)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the remote tier has been told everything, as long as it does not fail. Whether it has."""
        return self._sync is None or self._sync.flush(timeout_s)

    def close(self) -> None:
        if self._sync:
            self._sync.close()
        for tier in (*self._near, self.remote):
            if tier is not None:
                tier.close()
        super().close()

    def _drop_copies(self, keys: Iterable[str]) -> None:
        keys = list(keys)
        for tier in self._near:
            for key in keys:
                tier.delete(key)

    def _fetch(self, key: str, token_ids: tuple[int, ...]) -> ChunkKV | None:
        """The entry from the remote tier, checked; it is kept in the tier in front of the disk."""
        if self.remote is None or (self.outbox and self.outbox.is_deleted(key)):
            return None
        reader = self.remote.open(key, token_ids)
        if reader is None:
            return None
        with contextlib.closing(reader):
            kv = read_whole(reader, token_ids)
        for tier in self._near[-1:]:
            with contextlib.suppress(StoreError):  # what is in use leaves no room
                tier.keep(key, kv)
        return kv


class _ClimbingReader(WrappedReader):
    """A reader whose entry is kept ``nearer`` too once all its layers have been read, if it is still where it was."""

    def __init__(
        self, reader: KVReader, key: str, token_ids: tuple[int, ...], found_in: KVStore, nearer: MemoryStore
    ) -> None:
        super().__init__(reader)
        self._key = key
        self._token_ids = token_ids
        self._found_in = found_in
        self._nearer = nearer
        self._layers: dict[int, LayerKV] = {}
        self._lock = threading.Lock()

    def layer(self, index: int) -> LayerKV:
        layer = super().layer(index)
        with self._lock:
            self._layers[index] = layer
        return layer

    def close(self) -> None:
        super().close()
        with self._lock:
            layers, self._layers = self._layers, {}
        if len(layers) == self.layer_count:
            kv = ChunkKV(self._token_ids, tuple(layers[index] for index in range(len(layers))))
            with contextlib.suppress(StoreError):  # larger than the budget, or what is in use leaves no room
                if self._found_in.contains(self._key):
                    self._nearer.keep(self._key, kv)
