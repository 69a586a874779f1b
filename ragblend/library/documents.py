"""The documents of a library: files and folders in, and out again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragblend.errors import ConfigError, PathNotFoundError
from ragblend.library.embedding import Embedder
from ragblend.library.indexing import Indexer, replacing
from ragblend.library.progress import IndexProgress
from ragblend.library.protocol import LibraryEngine
from ragblend.library.records import Records
from ragblend.library.report import IndexReport
from ragblend.library.retrieval import Retriever
from ragblend.library.walk import absolute, find_files, is_text, printable
from ragblend.store.disk import DiskStore

Paths = str | Path | Sequence[str | Path]


@dataclass(frozen=True)
class Documents:
    """Of one namespace. bind: makes the library one of the engine and an embedder. writing: the writer lock."""

    records: Records
    store: DiskStore
    retriever: Retriever
    bind: Callable[[LibraryEngine, Embedder], None]
    writing: Callable[[], AbstractContextManager[None]]

    def add(
        self, paths: Paths, engine: LibraryEngine, embedder: Embedder, chunk_tokens: int, progress: IndexProgress
    ) -> IndexReport:
        """As ``Library.add``."""
        began = time.perf_counter()
        found = find_files(_listed(paths))
        with self.writing():
            if not self._at(found.roots):
                found.require_any()
            self.bind(engine, embedder)
            indexer = Indexer(self.records, self.store, engine, embedder, chunk_tokens, progress)
            progress.start(len(found.files) + len(found.skipped))
            try:
                for skipped in found.skipped:
                    indexer.skip(skipped)
                indexer.index(found.files)
            finally:
                progress.finish()
            removed = self._remove(path for path in self._at(found.roots) if _is_gone(path))
            self.retriever.save()
        totals = self.records.totals()
        return IndexReport(
            documents=totals.documents,
            chunks=totals.chunks,
            tokens=totals.tokens,
            kv_bytes=self.store.nbytes(),
            indexed=indexer.indexed,
            unchanged=indexer.unchanged,
            replaced=indexer.replaced,
            removed=removed,
            skipped=tuple(indexer.skipped),
            seconds=time.perf_counter() - began,
        )

    def remove(self, paths: Paths) -> int:
        """As ``Library.remove``."""
        with self.writing():
            found = {path: self._at([path]) for path in map(absolute, _listed(paths))}
            if unknown := [printable(path) for path, documents in found.items() if not documents]:
                raise PathNotFoundError(f"not in the library: {', '.join(unknown)}; nothing was removed")
            removed = self._remove({document for documents in found.values() for document in documents})
            self.retriever.save()
        return removed

    def _at(self, paths: Iterable[Path]) -> list[str]:
        named = [str(path) for path in paths if is_text(path)]  # nothing else can have been kept
        return [document for path in named for document in self.records.paths_below(path)]

    def _remove(self, documents: Iterable[str]) -> int:
        documents = set(documents)
        if documents:
            with replacing(self.records, self.store) as released:
                released += self.records.remove(documents)
        return len(documents)


def _listed(paths: Paths) -> Sequence[str | Path]:
    listed: list[Any]
    listed = [paths] if isinstance(paths, str | Path) or not isinstance(paths, Iterable) else list(paths)
    if not all(isinstance(path, str | Path) for path in listed):
        raise ConfigError(f"give a path, or a list of paths, not {paths!r}")
    return listed


def _is_gone(path: str) -> bool:
    """Whether there is no such file; one that can only not be reached is not gone."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
