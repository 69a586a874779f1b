"""The background thread between a disk store and its remote tier: write-behind, and keeping what was fetched."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

from ragblend.errors import RagblendError, RemoteStoreError, StoreFullError
from ragblend.store.base import ChunkKV
from ragblend.store.outbox import Operation, Outbox
from ragblend.store.remote import RemoteStore

if TYPE_CHECKING:
    from ragblend.store.tiers import TieredStore

_BATCH = 32
# Fetched entries that wait to be written to the disk; what does not fit is fetched again another time.
_MOST_KEPT = 64

log = logging.getLogger(__name__)


class RemoteSync:
    """Carries the outbox to the remote tier, and fetched entries to the disk.

    The outbox is the queue, so it needs no memory and loses nothing: what a killed process leaves there is carried by
    the next one. The store's writer lock is held while fetched entries are written.
    """

    def __init__(
        self,
        store: TieredStore,
        remote: RemoteStore,
        outbox: Outbox,
    ) -> None:
        self._store = store
        self._remote = remote
        self._outbox = outbox
        self._fetched: OrderedDict[str, ChunkKV] = OrderedDict()
        self._changed = threading.Condition()
        self._requested = self._settled = self._done = 0  # rounds of work: asked for, looked at, and done
        self._failing = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """There is something to do. The thread starts with the first time."""
        with self._changed:
            if self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ragblend-sync", daemon=True)
                self._thread.start()
            self._requested += 1
            self._changed.notify_all()

    def keep(self, key: str, kv: ChunkKV) -> None:
        """Write a fetched entry to the disk when there is time."""
        with self._changed:
            if len(self._fetched) < _MOST_KEPT:
                self._fetched[key] = kv
        self.wake()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is carried, but not longer than that, and not for a tier that fails. Whether it is."""
        if self._outbox.count():
            self.wake()
        with self._changed:
            asked = self._requested
            self._changed.wait_for(lambda: self._settled >= asked or self._failing or self._closed, timeout_s)
        return not self._outbox.count()

    def close(self) -> None:
        """End the thread after what it is just doing. What is left in the outbox stays there."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(self._remote.timeout_s + 1.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._requested > self._done or self._closed)
                if self._closed:
                    return
                asked = self._requested
            succeeded = self._work()
            with self._changed:
                self._settled = asked
                self._failing = not succeeded
                self._changed.notify_all()
                if succeeded:
                    self._done = asked
                else:
                    self._changed.wait_for(lambda: self._closed, self._remote.pause_s)

    def _work(self) -> bool:
        """Do what there is to do. Whether it was done."""
        try:
            self._write_fetched()
            while items := self._outbox.pending(_BATCH):
                done: list[tuple[str, Operation]] = []
                try:
                    for key, operation in items:
                        if self._closed:
                            return False
                        self._carry(key, operation)
                        done.append((key, operation))
                finally:
                    self._outbox.done(done)
        except RagblendError as error:
            level = logging.INFO if isinstance(error, RemoteStoreError) else logging.WARNING
            log.log(level, "remote tier: waiting (%s)", type(error).__name__, extra={"error": type(error).__name__})
            return False
        return True

    def _carry(self, key: str, operation: Operation) -> None:
        if operation == "delete":
            self._remote.delete(key)
            return
        blob = self._store.blob(key)
        if blob is not None:  # else it has been evicted or deleted since
            self._remote.put_blob(key, blob)

    def _write_fetched(self) -> None:
        with self._changed:
            fetched, self._fetched = self._fetched, OrderedDict()
        if fetched:
            with self._store.exclusive():
                for key, kv in fetched.items():
                    if not self._outbox.is_deleted(key):
                        with contextlib.suppress(StoreFullError):  # it can be fetched again
                            self._store.adopt(key, kv)
