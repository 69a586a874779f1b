"""The half of a library that looks after it: what it holds, whether that is sound, and putting it right."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from pathlib import Path

from ragblend.config import ChunkSettings, require
from ragblend.library import layout, upkeep
from ragblend.library.erasing import erase
from ragblend.library.home import Home
from ragblend.library.origin import Origin
from ragblend.library.precomputed import PrecomputedTexts
from ragblend.library.progress import IndexProgress, Silent
from ragblend.library.protocol import LibraryEngine
from ragblend.library.records import Records
from ragblend.library.report import GarbageReport, LearningReport, LibraryInfo, RepairReport, VerifyReport
from ragblend.library.retrieval import Retriever
from ragblend.library.reuse import Reuse
from ragblend.library.storage import store_info
from ragblend.prefix.shelf import Shelf
from ragblend.store.tiers import TieredStore


class Maintaining(ABC):
    """What ``Library`` does for its upkeep. Of an encrypted namespace ``info``, ``gc`` and ``erase`` need no key."""

    folder: Path
    namespace: str
    store: TieredStore
    _origin: Origin
    _records: Records
    _precomputed: PrecomputedTexts
    _reuse: Reuse | None
    _shelf: Shelf
    _home: Home

    @property
    @abstractmethod
    def chunk(self) -> ChunkSettings: ...

    @property
    @abstractmethod
    def _retriever(self) -> Retriever: ...

    @abstractmethod
    def _require_engine(self) -> LibraryEngine: ...

    @abstractmethod
    def _require_writable(self) -> None: ...

    @abstractmethod
    def _writing(self) -> AbstractContextManager[None]: ...

    def info(self) -> LibraryInfo:
        """What the namespace holds and what the library was made with. Loads no model."""
        totals = self._records.totals()
        return LibraryInfo(
            path=str(self.folder),
            namespace=self.namespace,
            documents=totals.documents,
            chunks=totals.chunks,
            tokens=totals.tokens,
            kv_bytes=self.store.nbytes(),
            unneeded_bytes=sum(self._records.unneeded_entries().values()),
            prefix_bytes=self._shelf.store.nbytes(),
            model=self._origin.read("model"),
            model_reference=self._origin.read("model_reference"),
            embedder=self._origin.read("embedder"),
            chunk_tokens=self.chunk.tokens,
            created_at=float(self._origin.read("created_at") or 0),
            texts=self._precomputed.count(),
            learning=self._reuse.learner.report if self._reuse else LearningReport(),
            store=store_info(self.store),
        )

    def verify(self, *, sample: int | None = None, audit: int = 0) -> VerifyReport:
        """Read the chunk KV of the namespace, check catalogue and index. Changes nothing, and others may write.

        sample: read only so many entries, chosen at random (None: all). audit: compute so many of the
        sound ones again and compare, which finds KV that was wrong when it was written; needs an engine.
        Raises StoreError for a damaged catalogue, ConfigError.
        """
        require(sample is None or sample >= 1, f"the sample must be at least 1 entry, got {sample}")
        require(audit >= 0, f"the number of entries to audit must not be negative, got {audit}")
        engine = self._require_engine() if audit else None
        return upkeep.verify(self._records, self.store, self._retriever, sample=sample, audit=audit, engine=engine)

    def repair(self, progress: IndexProgress | None = None, *, everything: bool = False) -> RepairReport:
        """Compute missing and damaged chunk KV again and rebuild a bad index.

        everything: compute all KV again, also what seems sound. Raises StoreError for a damaged catalogue.
        """
        engine = self._require_engine()
        with self._writing():
            return upkeep.repair(
                self._records, self.store, self._retriever, engine, progress or Silent(), everything=everything
            )

    def gc(self) -> GarbageReport:
        """Delete what no chunk needs: leftovers of interrupted runs, quarantined and temporary files.

        A search index that an older version wrote is replaced.
        """
        with self._writing():
            if not self.store.values.locked and not self._retriever.is_sound():
                self._retriever.save()
            return upkeep.collect_garbage(self._records, self.store, self._shelf.store, self.folder / layout.INDEX)

    def erase(self) -> int:
        """Remove all that the namespace holds, what it keeps of prompts too. Returns how many documents there were.

        An encrypted namespace has no key any more, so this library cannot write to it again: open it anew.
        Raises LibraryBusyError.
        """
        self._require_writable()
        with self.store.exclusive():
            if not self.store.values.locked:
                self._home.prefixes.clear()
                self._home.prefixes.flush()
            documents = erase(self._records, self._precomputed, self.store, self._shelf)
            layout.index_file(self.folder, self.namespace).unlink(missing_ok=True)
        return documents
