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


def in_sections(chunks: Iterable[Ids], engine: LibraryEngine) -> list[Wanted]:
    """A document's chunks in order, each behind those before it in its section and the end of what is before that.

    A section has ``SECTION_TOKENS`` tokens at most, or one chunk. It is computed at once, along with the
    ``CONTEXT_TOKENS`` before it.
    """
    wanted: list[Wanted] = []
    before: Ids = ()
    section = 0
    for chunk in chunks:
        if section + len(chunk) > SECTION_TOKENS:
            before, section = before[-CONTEXT_TOKENS:], 0
        fits = engine.prefills_in_context and len(before) + len(chunk) <= engine.chunk_room
        wanted.append(Wanted(chunk, before if fits else ()))
        before += chunk
        section += len(chunk)
    return wanted


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

    A text that was given stands alone, and so does a chunk that was indexed before there were sections.
    """
    found = {}
    for key, token_ids in entries.items():
        alone = Wanted(token_ids)
        documents = [[*before, token_ids] for before in records.chunks_before(key)]
        candidates = [alone, *(in_sections(chunks, engine)[-1] for chunks in documents)]
        found[key] = next((each for each in candidates if key_of(each, engine, store) == key), alone)
    return found
