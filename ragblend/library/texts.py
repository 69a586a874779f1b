"""Texts that a program gives, each under an id of its own: what a vector store of another framework keeps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from ragblend.config import require
from ragblend.errors import ConfigError, LibraryError
from ragblend.library.chunking import Chunk
from ragblend.library.embedding import Embedder, Vectors
from ragblend.library.indexing import prefill_into, replacing
from ragblend.library.progress import Silent
from ragblend.library.protocol import LibraryEngine
from ragblend.library.records import GivenText, Records
from ragblend.library.retrieval import Retriever
from ragblend.library.sections import Pieces, Wanted, key_of
from ragblend.store.disk import DiskStore
from ragblend.store.key import digest_fields

# Texts are embedded, prefilled and committed together up to about this many.
_BATCH_TEXTS = 32


@dataclass(frozen=True, slots=True)
class TextDocument:
    """A text that is one chunk as it stands, found under the id that its owner gave it.

    metadata: anything that JSON can hold. embedding: a vector of any length; None lets the library embed the text.
    document: texts in a row that name the same one are pieces of it, in order, and each is prefilled behind those
    before it. The name is not kept.
    """

    id: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    embedding: Sequence[float] | None = field(default=None, repr=False, compare=False)
    document: str = field(default="", compare=False)


class GivenVectors:
    """The embedder of a library whose vectors all came with the texts. It embeds nothing."""

    def __init__(self, dimensions: int) -> None:
        self.name = f"vectors given with the texts ({dimensions} dimensions)"
        self.digest = digest_fields("given", str(dimensions))

    def embed_chunks(self, texts: Sequence[str]) -> Vectors:
        raise LibraryError(f"the library has {self.name}: give a vector with each of these {len(texts)} too")

    def embed_question(self, text: str) -> Vectors:  # noqa: ARG002 (no word of it belongs into a message)
        raise LibraryError(f"the library has {self.name}, so no question can be embedded: search by vector")


class Texts:
    """The texts of a library's namespace. They share index, KV store and search with its documents.

    bind: makes the library one of the engine and an embedder. writing: the writer lock.
    """

    def __init__(
        self,
        records: Records,
        store: DiskStore,
        retriever: Retriever,
        engine: Callable[[], LibraryEngine],
        embedder: Callable[[], Embedder],
        bind: Callable[[LibraryEngine, Embedder], None],
        writing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._records = records
        self._store = store
        self._retriever = retriever
        self._engine = engine
        self._embedder = embedder
        self._bind = bind
        self._writing = writing

    def add(self, texts: Iterable[TextDocument]) -> int:
        """Add texts, each in place of what was under its id. Returns how many were new or changed.

        A text that is under its id already keeps its KV, whatever pieces of its document now stand before it.

        Streams: finished batches are kept whatever happens later. A batch with a bad text is refused whole.
        Raises ConfigError (an empty id or text, one longer than the model's context, metadata that is no JSON,
        a vector of zeros); LibraryMismatchError, LibraryBusyError, StoreFullError.
        """
        engine = self._engine()
        changed = 0
        remaining, pieces = iter(texts), Pieces(engine)
        with self._writing():
            while batch := list(islice(remaining, _BATCH_TEXTS)):
                changed += self._add(engine, [_Prepared.of(text, engine, self._store, pieces) for text in batch])
            self._retriever.save()
        return changed

    def get(self, ids: Sequence[str]) -> list[TextDocument]:
        """The texts with these ids, in this order; unknown ids are left out."""
        found = self._records.texts(ids)
        return [_document(id, found[id]) for id in ids if id in found]

    def remove(self, ids: Iterable[str]) -> int:
        """Remove texts and the KV that nothing else needs. Unknown ids are ignored. Returns how many were there."""
        known = self._records.texts(list(ids))
        if known:
            with self._writing():
                with replacing(self._records, self._store) as released:
                    released += self._records.remove(known)
                self._retriever.save()
        return len(known)

    def ids(self) -> list[str]:
        """Ids of all texts, in order."""
        return self._records.text_ids()

    def _add(self, engine: LibraryEngine, batch: Sequence[_Prepared]) -> int:
        changed = [each for each in batch if self._records.digest(each.document.id) != each.digest]
        for id in (each.document.id for each in changed):
            require(not self._records.is_file(id), f"{id} is a file of the library: give the text another id")
        if not changed:
            return 0
        embedder = self._embedder_of(changed)
        self._bind(engine, embedder)
        changed = self._as_before(changed)
        absent = (each for each in changed if not self._store.obtain(each.key, each.wanted.token_ids))
        missing = {each.key: each.wanted for each in absent}
        prefill_into(self._store, engine, missing, Silent())
        vectors = self._vectors(embedder, [each.document for each in changed])
        with replacing(self._records, self._store) as released:
            for each, vector in zip(changed, vectors, strict=True):
                chunk = Chunk(each.document.text, "", 0, each.wanted.token_ids)
                released += self._records.replace(
                    each.document.id, "", each.digest, [chunk], [each.key], [vector], metadata=each.metadata
                )
                self._records.contexts.put(each.key, each.wanted.context_ids)
        return len(changed)

    def _as_before(self, batch: Sequence[_Prepared]) -> list[_Prepared]:
        """Where only the metadata or the vector of a text is new, with the entry that it has."""
        known = self._records.texts([each.document.id for each in batch])

        def as_before(each: _Prepared) -> _Prepared:
            given = known.get(each.document.id)
            if given is None or given.text.strip() != each.document.text.strip():
                return each
            wanted = Wanted(each.wanted.token_ids, self._records.contexts.of(given.entry_key))
            return replace(each, wanted=wanted, key=given.entry_key)

        return list(map(as_before, batch))

    def _embedder_of(self, batch: Sequence[_Prepared]) -> Embedder:
        dimensions = {len(given) for each in batch if (given := each.document.embedding) is not None}
        require(len(dimensions) <= 1, f"vectors of different lengths: {', '.join(map(str, sorted(dimensions)))}")
        if dimensions and all(each.document.embedding is not None for each in batch):
            return GivenVectors(dimensions.pop())
        return self._embedder()

    @staticmethod
    def _vectors(embedder: Embedder, batch: Sequence[TextDocument]) -> Sequence[Vectors]:
        """One vector of length 1 for each text."""
        missing = [text.text for text in batch if text.embedding is None]
        embedded = iter(embedder.embed_chunks(missing) if missing else ())
        return [next(embedded) if text.embedding is None else unit_vector(text.embedding) for text in batch]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A text that has been checked and tokenised."""

    document: TextDocument
    wanted: Wanted
    key: str
    metadata: str
    digest: str

    @classmethod
    def of(cls, document: TextDocument, engine: LibraryEngine, store: DiskStore, pieces: Pieces) -> _Prepared:
        require(bool(document.id), "a text has an empty id: give it one")
        named = isinstance(document.document, str)
        require(named, f"the document of text {document.id!r} must be named by a string, got {document.document!r}")
        require(bool(document.text.strip()), f"text {document.id!r} is empty: leave it out")
        token_ids = engine.template.bare_ids(document.text)
        room = engine.chunk_room
        require(
            len(token_ids) <= room,
            f"text {document.id!r} has {len(token_ids):,} tokens, but the context has room for {room:,}: split it",
        )
        try:
            metadata = json.dumps(dict(document.metadata), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"metadata of text {document.id!r} are no JSON ({error}): use plain values") from error
        vector = b"" if document.embedding is None else unit_vector(document.embedding).tobytes()
        digest = digest_fields("text", document.text, metadata, vector)
        wanted = pieces.next(token_ids, document.document)
        return cls(document, wanted, key_of(wanted, engine, store), metadata, digest)


def unit_vector(values: Sequence[float] | Vectors) -> Vectors:
    """``values`` at length 1. Raises ConfigError for a vector of zeros, or of anything but finite numbers."""
    vector = np.asarray(values, np.float32)
    length = float(np.linalg.norm(vector))
    require(vector.ndim == 1 and 0 < length < np.inf, "an embedding must be a list of finite numbers, not all zero")
    return vector / np.float32(length)


def _document(id: str, given: GivenText) -> TextDocument:
    vector = np.frombuffer(given.embedding, np.float32)
    return TextDocument(id, given.text, json.loads(given.metadata), tuple(vector.tolist()))
