"""The library: documents, chunks, embeddings and chunk KV in one folder."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ragblend.config import (
    DEFAULT_NAMESPACE,
    ChunkSettings,
    ReuseSettings,
    StoreSettings,
    require,
    require_count,
    require_namespace,
    require_question,
)
from ragblend.errors import LibraryError
from ragblend.library import layout
from ragblend.library.answering import Answering
from ragblend.library.caches import unattended
from ragblend.library.conversation import ConversationReader
from ragblend.library.documents import Documents, Paths
from ragblend.library.embedding import Embedder, SentenceEmbedder, Vectors
from ragblend.library.folder import delete_with, prepare_folder, temporary_folder
from ragblend.library.home import Home
from ragblend.library.indexing import replacing
from ragblend.library.known import KnownTexts
from ragblend.library.maintaining import Maintaining
from ragblend.library.origin import Origin
from ragblend.library.owners import ChunkOwners
from ragblend.library.precompute import Precomputer
from ragblend.library.precomputed import PrecomputedTexts
from ragblend.library.progress import IndexProgress, Silent
from ragblend.library.protocol import LibraryEngine
from ragblend.library.records import Records
from ragblend.library.report import Hit, IndexReport, PrecomputeReport
from ragblend.library.retrieval import Retriever
from ragblend.library.reuse import Reuse
from ragblend.library.shared import SharedNamespace
from ragblend.library.storage import open_shelf, open_store
from ragblend.library.texts import Texts, unit_vector
from ragblend.prefix.cache import PrefixCache
from ragblend.prefix.names import Names
from ragblend.prompt import Passage
from ragblend.store.base import StoreEvents
from ragblend.store.catalogue import Catalogue
from ragblend.store.files import SYSTEM_FILES, Files

if TYPE_CHECKING:
    from ragblend.store.metrics import StoreMetrics


class Library(Answering, Maintaining):
    """One namespace of a library folder. Open it with ``Library.open``; close it, or use it in ``with``.

    Asking, searching and indexing are safe from several threads and processes; one writes at a time.

    temporary: whether the folder goes when the library is closed. reuse: as given to ``open``.
    """

    def __init__(
        self,
        folder: Path,
        catalogue: Catalogue,
        engine: LibraryEngine | None,
        namespace: str,
        chunk: ChunkSettings | None,
        embedder: Embedder | None,
        files: Files,
        reuse: ReuseSettings,
        store: StoreSettings,
        metrics: StoreMetrics | None,
    ) -> None:
        self.folder = folder
        self.catalogue = catalogue
        self.engine = engine
        self.namespace = namespace
        self.read_only = catalogue.read_only
        self._events = metrics.of(namespace) if metrics else StoreEvents()
        self._origin = Origin(catalogue, folder)
        shared = store.shared_namespace
        self._shared = self._open_shared(shared, files, metrics) if shared and shared != namespace else None
        codec = self._origin.codec(store.codec)
        device = engine.device if engine else None
        self.store = open_store(folder, catalogue, namespace, files, store, codec, self._events, device)
        self.store.shared = self._shared.store if self._shared else None
        self._records = Records(catalogue, namespace, self.store.values)
        self._chunk = chunk
        self._given_embedder = embedder
        self._delete_folder: Callable[[], Any] = lambda: None
        self._precomputed = PrecomputedTexts(catalogue, namespace, self.store.values)
        self.reuse = reuse
        self.temporary = False
        known = KnownTexts(self._records, self._precomputed)
        self._reuse = None if engine is None else self._start_reuse(engine, reuse, known)
        self._shelf = open_shelf(self.store, engine.caches.clock if engine else time.time)
        self._home = self._open_home(ChunkOwners(self._records, self._precomputed, known))

    @classmethod
    def open(
        cls,
        path: str | Path | None,
        *,
        engine: LibraryEngine | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        create: bool = True,
        read_only: bool = False,
        chunk: ChunkSettings | None = None,
        embedder: Embedder | None = None,
        files: Files = SYSTEM_FILES,
        reuse: ReuseSettings | None = None,
        store: StoreSettings | None = None,
        metrics: StoreMetrics | None = None,
    ) -> Library:
        """Open the library in folder ``path``, made if need be. None is a folder of its own, deleted at ``close``.

        engine: answers and prefills. None is enough to search, remove and look after the library.
        create: make a library where there is none. read_only: change nothing, not even a cache.
        chunk: how documents are cut from now on (None: as before, 256 tokens at first).
        embedder: None for the embedded one, loaded when it is first needed. reuse: how ``chat`` and
        ``complete`` find chunks in prompts, and what they learn from them.
        store: codec, budgets, tiers, encryption. metrics: what counts the store's hits, misses and seconds.
        files: what is done to chunk KV files; another one is of use to tests of failing disks.

        A read-only library with limits does note in its files when they were last used.

        Raises PathNotFoundError (no library there, and none can be), LibraryMismatchError (indexed
        with another model, anchor or codec), StoreError, LibraryBusyError, ConfigError.
        """
        require(isinstance(path, str | Path | None), f"the library's path must be a path, got {path!r}")
        require_namespace(namespace)
        require(not isinstance(engine, str), f"the engine must be an Engine, such as Engine({engine!r})")
        require(path is not None or not read_only, "a library without a path is new: it cannot be read-only")
        folder = temporary_folder() if path is None else Path(path).expanduser()
        prepare_folder(folder, create=create and not read_only)
        catalogue = Catalogue(folder / layout.CATALOGUE, read_only=read_only)
        library = None
        try:
            library = cls(
                folder,
                catalogue,
                engine,
                namespace,
                chunk,
                embedder,
                files,
                reuse or ReuseSettings(),
                store or StoreSettings(),
                metrics,
            )
            if path is None:
                library.temporary = True
                library._delete_folder = delete_with(library, folder)
            if engine is not None and library._reuse is not None:  # of these the later ones go first
                weakref.finalize(library, engine.caches.detach, library._home, abandon=True)
                weakref.finalize(library, library._reuse.close)
            if not read_only:
                library._origin.create()
            if engine is not None:
                library._origin.require_engine(engine)
                library.store.values.require_key()
                library.store.codec.require_package()
        except BaseException:
            (library or catalogue).close()
            raise
        return library

    def add(self, paths: Paths, progress: IndexProgress | None = None) -> IndexReport:
        """Index files and folders; what is in the library unchanged costs only reading it.

        Documents whose files are gone from an indexed folder are removed. Bad files are skipped and
        reported. Raises PathNotFoundError (a path is not there, or nothing was found) before anything
        is written; StoreFullError with all finished documents kept; LibraryBusyError, LibraryMismatchError.
        """
        engine, embedder = self._require_engine(), self._require_embedder()
        return self._documents.add(paths, engine, embedder, self.chunk.tokens, progress or Silent())

    def remove(self, paths: Paths) -> int:
        """Remove documents and folders of documents with their chunks and KV. Returns how many documents.

        The files need not exist any more. Raises PathNotFoundError, with nothing removed, if a path
        names no document of the library.
        """
        return self._documents.remove(paths)

    def search(self, question: str, k: int = 6, *, where: Callable[[Hit], bool] | None = None) -> list[Hit]:
        """The ``k`` chunks nearest to ``question``, best first; ties by document and position.

        where: what a hit must fulfil.

        Raises ConfigError (k below 1, an empty question), LibraryError (nothing is indexed yet),
        LibraryMismatchError (another embedder).
        """
        require_count("k", k)
        require_question(question)
        embedder = self._require_embedder()
        hits = [] if self._is_empty() else self._search(embedder.embed_question(question), k, where)
        if not hits and (where is None or self._is_empty()):  # also if the last chunk went meanwhile
            raise LibraryError(
                f"nothing is indexed in namespace {self.namespace!r} yet: add documents first (ragblend index)"
            )
        return hits

    def embed(self, question: str) -> Vectors:
        """The question's vector, [dimensions], of length 1. Raises LibraryMismatchError (another embedder)."""
        return self._require_embedder().embed_question(question)

    def search_vector(
        self, vector: Sequence[float] | Vectors, k: int = 6, *, where: Callable[[Hit], bool] | None = None
    ) -> list[Hit]:
        """As ``search``, for a question that is embedded already. A library without chunks has no hits."""
        require_count("k", k)
        return self._search(unit_vector(vector), k, where)

    @cached_property
    def texts(self) -> Texts:
        """Texts under ids of the caller's own, beside the documents."""
        return Texts(
            self._records,
            self.store,
            self._retriever,
            self._require_engine,
            self._require_embedder,
            self._bind,
            self._writing,
        )

    def precompute(self, texts: Iterable[str | Passage], progress: IndexProgress | None = None) -> PrecomputeReport:
        """Compute KV for texts as they will stand in prompts, without their outer whitespace.

        They are not documents: no search finds them, but ``chat`` and ``complete`` know them wherever they
        stand. Passages in a row that name the same ``document`` are pieces of it, in order, and each is prefilled
        behind those before it; of a passage only the text and that name count. A string, and a passage without a
        document, stands alone. Known texts cost a look and stay as they are, whatever now stands before them.

        Streams; each finished text is durable. Raises ConfigError (what is neither string nor Passage),
        LibraryMismatchError, LibraryBusyError, StoreFullError.
        """
        self._require_engine()
        self._require_writable()
        return self._require_reuse().precomputer.run(texts, progress or Silent())

    def forget(self, texts: Iterable[str]) -> int:
        """Remove precomputed texts and the KV that nobody else needs. Returns how many were there."""
        require(not isinstance(texts, str), "give a list of texts, not one string")
        with self._writing(), replacing(self._records, self.store) as released:
            keys = self._precomputed.remove(form for text in texts for form in {text, text.strip()})
            released += keys
        return len(keys)

    @property
    def prefixes(self) -> PrefixCache:
        """The KV of prompts' beginnings that the library keeps."""
        return self._home.prefixes

    @property
    def named_caches(self) -> Names:
        """The named caches of the namespace."""
        return self._home.names

    def close(self) -> None:
        """Release the catalogue and the store. Using the library afterwards raises StoreError.

        Streams that are still running end with a LibraryError, and what waits to be learned is dropped.
        """
        if self._reuse is not None:
            self._reuse.close()
        if self.engine is not None:
            self.engine.caches.detach(self._home)
        else:
            self._home.prefixes.close()
        self.store.close()
        if self._shared is not None:
            self._shared.close()
        self.catalogue.close()
        self._delete_folder()

    def __enter__(self) -> Library:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def chunk(self) -> ChunkSettings:
        """How documents are cut: as given at ``open``, else as they were before, else the default."""
        before = self._origin.read("chunk_tokens")
        return self._chunk or (ChunkSettings(int(before)) if before else ChunkSettings())

    @cached_property
    def _embedder(self) -> Embedder:
        return self._given_embedder or SentenceEmbedder()

    @cached_property
    def _retriever(self) -> Retriever:
        return Retriever(self._records, *self._index_of(self.namespace), self.store.cipher)

    @cached_property
    def _documents(self) -> Documents:
        return Documents(self._records, self.store, self._retriever, self._bind, self._writing)

    def _bind(self, engine: LibraryEngine, embedder: Embedder) -> None:
        self._origin.bind(engine, self.store.codec.name, embedder, self.chunk.tokens)

    def _open_home(self, owners: ChunkOwners) -> Home:
        if self.engine is None:
            return unattended(self.namespace, self._shelf, owners)
        return self.engine.caches.attach(self.namespace, self.store.memory, self._shelf, owners)

    def _start_reuse(self, engine: LibraryEngine, settings: ReuseSettings, known: KnownTexts) -> Reuse:
        """Parts that know nothing of the library itself, so that a thread does not keep it alive."""
        reader = ConversationReader(engine, self.store, self.store.key_namespace, known, find=settings.find)
        lock = self.store.exclusive
        bind = partial(self._origin.bind_engine, engine, self.store.codec.name)
        precomputer = Precomputer(self._records, self._precomputed, self.store, engine, lock, bind)
        return Reuse(reader, precomputer, settings, self._events, read_only=self.read_only)

    def _index_of(self, namespace: str) -> tuple[Path, Callable[[], str]]:
        """Where a namespace's search index lies, and what it has to belong to."""
        return layout.index_file(self.folder, namespace), partial(self._origin.index_stamp, namespace)

    def _open_shared(self, namespace: str, files: Files, metrics: StoreMetrics | None) -> SharedNamespace:
        events = metrics.of(namespace) if metrics else StoreEvents()
        return SharedNamespace(self.folder, namespace, *self._index_of(namespace), files, events)

    def _is_empty(self) -> bool:
        return self._retriever.is_empty() and (self._shared is None or self._shared.is_empty())

    def _search(self, vector: Vectors, k: int, where: Callable[[Hit], bool] | None) -> list[Hit]:
        own = self._retriever.search(vector, k, where)
        return own if self._shared is None else self._shared.beside(own, vector, k, where)

    def _require_engine(self) -> LibraryEngine:
        if self.engine is None:
            raise LibraryError(f"{self.folder} was opened without a model: open it with engine=Engine(...)")
        self._origin.require_engine(self.engine)
        return self.engine

    def _require_embedder(self) -> Embedder:
        self._origin.require_embedder(self._embedder)
        return self._embedder

    def _require_writable(self) -> None:
        if self.read_only:
            raise LibraryError(f"{self.folder} was opened read-only: open it for writing to change it")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._require_writable()
        with self.store.exclusive():
            yield
            if not self.store.values.locked:
                self._home.revalidate()
