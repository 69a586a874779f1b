"""Bringing documents into the library: read, cut, embed, prefill what is new, commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from ragblend.errors import DocumentError
from ragblend.library import windows
from ragblend.library.chunking import Chunk, Chunker
from ragblend.library.embedding import Embedder
from ragblend.library.loaders import load
from ragblend.library.progress import IndexProgress
from ragblend.library.protocol import LibraryEngine
from ragblend.library.reading import read_file
from ragblend.library.records import Records
from ragblend.library.report import Skipped
from ragblend.library.sections import Wanted, in_sections, key_of, prefill
from ragblend.store.disk import DiskStore
from ragblend.store.key import digest_fields

# Part of every document's digest: raise it when the same bytes would be read, cut or embedded differently.
_CUT_VERSION = "2"
# Documents are embedded, prefilled and committed together up to about this many chunks.
_BATCH_CHUNKS = 32


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A document that is read and cut, but not yet in the library."""

    path: str
    digest: str
    title: str
    chunks: list[Chunk]
    keys: list[str]
    wanted: list[Wanted]
    replaces: bool


class Indexer:
    """One run over a list of files. Memory holds the documents of one batch and the KV of one prefill.

    Every finished step is durable: a run that is killed and started again finds finished documents
    unchanged and the KV of finished chunks in the store.
    """

    def __init__(
        self,
        records: Records,
        store: DiskStore,
        engine: LibraryEngine,
        embedder: Embedder,
        chunk_tokens: int,
        progress: IndexProgress,
    ) -> None:
        self.records = records
        self.store = store
        self.engine = engine
        self.embedder = embedder
        self.chunker = Chunker(engine.template, chunk_tokens)
        self.progress = progress
        self.indexed = self.unchanged = self.replaced = 0
        self.skipped: list[Skipped] = []

    def index(self, files: Iterable[Path]) -> None:
        """Index new and changed files; count the rest. Raises StoreError, StoreFullError."""
        batch: list[_Prepared] = []
        for file in files:
            try:
                prepared = self._prepare(file)
            except DocumentError as error:
                self.skip(Skipped(error.path, error.reason))
                continue
            if prepared is None:
                self.unchanged += 1
                self.progress.document(str(file))
                continue
            batch.append(prepared)
            if sum(len(document.chunks) for document in batch) >= _BATCH_CHUNKS:
                self._store(batch)
                batch = []
        self._store(batch)

    def skip(self, skipped: Skipped) -> None:
        self.skipped.append(skipped)
        self.progress.skipped(skipped.path, skipped.reason)

    def _prepare(self, file: Path) -> _Prepared | None:
        """The document of a file, or None if it is in the library as it is. Raises DocumentError."""
        path = str(file)
        data = read_file(file)
        digest = digest_fields(_CUT_VERSION, str(self.chunker.tokens), data)
        known = self.records.digest(path)
        if digest == known:
            return None
        title, chunks = self.chunker.cut(load(path, data))
        if not chunks:
            raise DocumentError(path, "no text besides headings")
        wanted = in_sections((chunk.token_ids for chunk in chunks), self.engine)
        keys = [key_of(each, self.engine, self.store) for each in wanted]
        return _Prepared(path, digest, title, chunks, keys, wanted, replaces=known is not None)

    def _store(self, batch: Sequence[_Prepared]) -> None:
        if not batch:
            return
        wanted = [pair for document in batch for pair in zip(document.keys, document.wanted, strict=True)]
        missing = {key: each for key, each in wanted if not self.store.obtain(key, each.token_ids)}
        prefill_into(self.store, self.engine, missing, self.progress)
        texts = [(doc.title, chunk.heading, chunk.text) for doc in batch for chunk in doc.chunks]
        embeddings = iter(windows.embed(self.embedder, texts))
        with replacing(self.records, self.store) as released:
            for doc in batch:
                wholes, parts = zip(*islice(embeddings, len(doc.chunks)), strict=True)
                released += self.records.replace(
                    doc.path, doc.title, doc.digest, doc.chunks, doc.keys, wholes, windows=parts
                )
        for document in batch:
            self.replaced += document.replaces
            self.indexed += not document.replaces
            self.progress.document(document.path)


def prefill_into(
    store: DiskStore, engine: LibraryEngine, missing: Mapping[str, Wanted], progress: IndexProgress
) -> int:
    """Compute the KV of chunks, by key, and write each durably. Returns the number of tokens."""
    for key, kv in zip(missing, prefill(engine, missing.values()), strict=True):
        store.put(key, kv)
        progress.chunk(len(kv.token_ids))
    return sum(len(each.token_ids) for each in missing.values())


@contextmanager
def replacing(records: Records, store: DiskStore) -> Iterator[list[str]]:
    """One transaction for the block, which adds the keys that its documents gave up.

    Entries that no chunk needs at its end go with it; their files are erased after the commit.
    """
    released: list[str] = []
    with records.catalogue.transaction():
        yield released
        unneeded = records.unneeded(released)
        records.contexts.remove(unneeded)
        store.forget(unneeded)
    store.erase(unneeded)
