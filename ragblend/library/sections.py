"""What a document's chunks are prefilled behind: what stands before them in the document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ragblend.library.protocol import LibraryEngine
from ragblend.library.records import Records
from ragblend.store.base import ChunkKV
from ragblend.store.disk import DiskStore

Ids = tuple[int, ...]

# Chunks that are found together are often of one document, so a chunk that has seen what comes before it there is
# closer to how it will stand in prompts. Measured in docs/policies.md.
SECTION_TOKENS = 1024
CONTEXT_TOKENS = 768


@dataclass(frozen=True, slots=True)
class Wanted:
    """A chunk to prefill, and what takes the preamble's place before it, if anything does."""

    token_ids: Ids
    context_ids: Ids = ()


class Section:
    """A document's chunks as they come, each behind those before it in its section and the end of what is before that.

    A section has ``SECTION_TOKENS`` tokens at most, or one chunk. It is computed at once, along with the
    ``CONTEXT_TOKENS`` before it. between: what stands behind each chunk before the next one.
    """

    def __init__(self, engine: LibraryEngine, between: Ids = ()) -> None:
        self._engine = engine
        self._between = between
        self._before: Ids = ()
        self._tokens = 0

    def next(self, chunk: Ids) -> Wanted:
        if self._tokens + len(chunk) > SECTION_TOKENS:
            self._before, self._tokens = self._before[-CONTEXT_TOKENS:], 0
        before = self._before
        fits = self._engine.prefills_in_context and len(before) + len(chunk) <= self._engine.chunk_room
        self._before += chunk + self._between
        self._tokens += len(chunk) + len(self._between)
        return Wanted(chunk, before if fits else ())


def in_sections(chunks: Iterable[Ids], engine: LibraryEngine) -> list[Wanted]:
    """A document's chunks in order, each behind what ``Section`` says."""
    section = Section(engine)
    return [section.next(chunk) for chunk in chunks]


class Pieces:
    """Texts that a program gives one by one, each behind those right before it that are of the same document.

    They have no blank line of their own, so one stands between them, as in most prompts.
    """

    def __init__(self, engine: LibraryEngine) -> None:
        self._engine = engine
        self._between = tuple(engine.template.text_ids("\n\n"))
        self._document = ""
        self._section = Section(engine, self._between)

    def next(self, token_ids: Ids, document: str) -> Wanted:
        """The next text. document: the name of its document; "" where it stands alone."""
        if not document or document != self._document:
            self._document, self._section = document, Section(self._engine, self._between)
        return self._section.next(token_ids)


def key_of(wanted: Wanted, engine: LibraryEngine, store: DiskStore) -> str:
    """The key of its entry in ``store``."""
    return engine.chunk_key(store.key_namespace, wanted.token_ids, store.codec.name, wanted.context_ids)


def prefill(
    engine: LibraryEngine, wanted: Iterable[Wanted], cancelled: Callable[[], bool] | None = None
) -> Iterator[ChunkKV]:
    """The KV of each in order, as ``LibraryEngine.prefill``."""
    listed = list(wanted)
    chunks, contexts = [each.token_ids for each in listed], [each.context_ids for each in listed]
    return engine.prefill(chunks, contexts=contexts, cancelled=cancelled)


def as_prefilled(
    records: Records, engine: LibraryEngine, store: DiskStore, entries: Mapping[str, Ids]
) -> dict[str, Wanted]:
    """The entries (token ids by key) with what they were prefilled behind, as their keys tell.

    What a text that was given stands behind is written down. Of a file it follows from the chunks before it; one
    that was indexed before there were sections stands alone.
    """
    found = {}
    for key, token_ids in entries.items():
        alone = Wanted(token_ids)
        given = Wanted(token_ids, records.contexts.of(key))
        documents = [[*before, token_ids] for before in records.chunks_before(key)]
        candidates = [alone, given, *(in_sections(chunks, engine)[-1] for chunks in documents)]
        found[key] = next((each for each in candidates if key_of(each, engine, store) == key), alone)
    return found
