"""Making room on the disk before an entry is written, so that a namespace is never over its limits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ragblend.config import DiskLimits
from ragblend.errors import StoreFullError
from ragblend.store.eviction import victims
from ragblend.store.quota import DiskQuota

if TYPE_CHECKING:
    from ragblend.store.disk import DiskStore


class DiskRoom:
    """Keeps the disk stores of one namespace within ``limits``: what nobody can use goes first, then what is worth
    least, whichever store has it.

    Entries with open readers are left alone. clock: seconds since the epoch, as files' times are.
    """

    def __init__(self, store: DiskStore, limits: DiskLimits, clock: Callable[[], float] = time.time) -> None:
        self.limits = limits
        self.clock = clock
        self.quota = DiskQuota(limits, store.root, (store.folder.parent, store.quarantine.parent))
        self._stores: list[DiskStore] = []
        self._catalogue = store.catalogue
        self._expired_gone = False
        self._version = -1
        self._writing = store.catalogue.files_lock  # shared by the stores of one folder, as the total budget is
        self.admit(store)

    def admit(self, store: DiskStore) -> None:
        """Another store of the namespace."""
        self._stores.append(store)
        self.quota.include(store.folder, store.quarantine)

    def look_again(self) -> None:
        """Measure the disk anew and drop what has expired before the next entry is written."""
        self.quota.forget_measure()
        self._expired_gone = False

    def begin_writing(self, *, interrupted: bool) -> None:
        """The writer lock is held from now on. interrupted: its last holder was killed, and may have left files.

        The disk is looked at again only if somebody else has written to it.
        """
        if self.limits.any:
            [(version,)] = self._catalogue.rows("PRAGMA data_version")
            if interrupted or version != self._version:
                self.look_again()
            self._version = version

    @contextmanager
    def reserved(self, nbytes: int) -> Iterator[None]:
        """Room for the file that the block writes. One file is written at a time, so none is in nobody's count.

        Raises StoreFullError, with nothing evicted, when the limits leave no room whatever is evicted.
        """
        if not self.limits.any:
            yield
            return
        with self._writing:
            if self.limits.total_budget is not None:
                self.quota.forget_measure()  # other namespaces' stores write too
            self._make_room(nbytes)
            try:
                yield
            except BaseException:
                self.quota.forget_measure()  # what a failed write left behind counts as well
                raise
            self.quota.change(nbytes)

    def free(self) -> float:
        """Bytes that can be written without evicting anything; infinity where there are no limits."""
        return self.quota.free() if self.limits.any else math.inf

    def drop_expired(self) -> None:
        """Evict the entries that nobody has used for their time to live."""
        for store in self._stores:
            store.evict(store.expired(), "expired")
        self._expired_gone = True

    def _make_room(self, nbytes: int) -> None:
        if not self._expired_gone:
            self.drop_expired()
        if self.quota.to_free(nbytes) > 0:
            self.quota.forget_measure()  # files that were damaged or removed may take less than they did
            for store in self._stores:
                for path in store.dead_files():
                    store.remove_file(path)
        wanted = self.quota.to_free(nbytes)
        if wanted > 0:
            homes = {candidate: store for store in self._stores for candidate in store.candidates()}
            if sum(candidate.nbytes for candidate in homes) < self.quota.excess(nbytes):
                raise self._full(nbytes)
            chosen = victims(homes, wanted)
            for store in self._stores:
                store.evict([victim.key for victim in chosen if homes[victim] is store], "budget")
        if self.quota.excess(nbytes) > 0:
            raise self._full(nbytes)

    def _full(self, nbytes: int) -> StoreFullError:
        limits = [f"{used:,} of {budget:,} bytes used" for used, budget in self.quota.budgets()]
        if self.limits.free_space_floor:
            limits.append(f"{self.limits.free_space_floor:,} bytes to be kept free")
        return StoreFullError(
            f"{self.quota.root}: no room for {nbytes:,} bytes of chunk KV ({', '.join(limits)}): "
            "raise the disk budget, or free some space"
        )
