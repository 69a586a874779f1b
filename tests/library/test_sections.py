"""What the chunks of a document are prefilled behind."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

from ragblend import Library, Message, Passage
from ragblend.library.sections import CONTEXT_TOKENS, SECTION_TOKENS, Wanted, in_sections
from ragblend.prompt import Segment
from ragblend.store.base import ChunkKV, read_whole
from tests.library.conftest import tiny_engine

TEXT = "\n\n".join(f"Paragraph {number} tells of the {word} pump." for number, word in enumerate(["red", "blue"] * 9))


class _Engine:
    """As much of an engine as sections look at."""

    def __init__(self, room: int = 100_000, in_context: bool = True) -> None:
        self.chunk_room, self.prefills_in_context = room, in_context


def ids(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))


def test_a_chunk_stands_behind_those_before_it():
    chunks = [ids(0, 3), ids(3, 2), ids(5, 4)]
    assert in_sections(chunks, _Engine()) == [
        Wanted(chunks[0]),
        Wanted(chunks[1], ids(0, 3)),
        Wanted(chunks[2], ids(0, 5)),
    ]


def test_a_section_begins_behind_the_end_of_the_one_before():
    half = SECTION_TOKENS // 2
    chunks = [ids(number * half, half) for number in range(5)]
    wanted = in_sections(chunks, _Engine())
    assert [len(each.context_ids) for each in wanted] == [
        0,
        half,
        CONTEXT_TOKENS,
        CONTEXT_TOKENS + half,
        CONTEXT_TOKENS,
    ]
    assert wanted[2].context_ids == ids(2 * half - CONTEXT_TOKENS, CONTEXT_TOKENS)
    assert wanted[3].context_ids == wanted[2].context_ids + chunks[2]


def test_long_chunks_are_sections_of_their_own():
    chunks = [ids(0, 3000), ids(3000, 3000)]
    assert [len(each.context_ids) for each in in_sections(chunks, _Engine())] == [0, CONTEXT_TOKENS]


def test_what_does_not_fit_the_models_context_stands_alone():
    chunks = [ids(0, 60), ids(60, 60)]
    assert in_sections(chunks, _Engine(room=100)) == [Wanted(chunk) for chunk in chunks]


def test_without_a_preamble_every_chunk_stands_alone():
    chunks = [ids(0, 3), ids(3, 2)]
    assert in_sections(chunks, _Engine(in_context=False)) == [Wanted(chunk) for chunk in chunks]


@pytest.fixture
def indexed(library, tmp_path) -> Library:
    (tmp_path / "pumps.txt").write_text(TEXT)
    library.add([tmp_path / "pumps.txt"])
    return library


def stored_kv(library: Library, chunk: Segment) -> ChunkKV:
    with closing(library.store.open(chunk.key, chunk.token_ids)) as reader:
        return read_whole(reader, chunk.token_ids)


def in_order(library: Library):
    hits = library.search("pump", k=100)
    return [hit.segment for hit in sorted(hits, key=lambda hit: hit.source.chunk)]


def test_a_document_is_stored_as_it_was_computed_behind_its_own_text(indexed):
    chunks = in_order(indexed)
    assert len(chunks) > 2
    contexts = [each.context_ids for each in in_sections([chunk.token_ids for chunk in chunks], indexed.engine)]
    assert contexts[1] == chunks[0].token_ids
    expected = indexed.engine.prefill([chunk.token_ids for chunk in chunks], contexts=contexts)
    for chunk, kv in zip(chunks, expected, strict=True):
        stored = stored_kv(indexed, chunk)
        for ours, layer in zip(stored.layers, kv.layers, strict=True):
            torch.testing.assert_close(ours.keys, layer.keys, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(ours.values, layer.values, atol=1e-4, rtol=1e-4)


def test_an_audit_knows_what_a_chunk_was_prefilled_behind(indexed):
    report = indexed.verify(audit=100)
    assert report.audited == len(in_order(indexed))
    assert report.deviating == ()


def test_a_lost_entry_comes_back_as_it_was(indexed):
    lost = in_order(indexed)[1]
    before = stored_kv(indexed, lost)
    indexed.store.delete(lost.key)
    assert indexed.repair().recomputed == 1
    after = stored_kv(indexed, lost)
    torch.testing.assert_close(after.layers[-1].values, before.layers[-1].values, atol=1e-4, rtol=1e-4)


def test_an_edit_computes_what_stands_behind_it_again(indexed, tmp_path):
    before = in_order(indexed)
    (tmp_path / "pumps.txt").write_text(f"{TEXT}\n\nOne more paragraph tells of the green pump, which nobody has seen.")
    indexed.add([tmp_path / "pumps.txt"])
    after = in_order(indexed)
    shared = [one.key == other.key for one, other in zip(before, after, strict=False)]
    assert shared[0]
    (tmp_path / "pumps.txt").write_text(f"The first words are new.\n\n{TEXT}")
    indexed.add([tmp_path / "pumps.txt"])
    assert not {chunk.key for chunk in in_order(indexed)} & {chunk.key for chunk in after}
    assert indexed.verify().ok


def test_a_chunk_of_a_file_is_found_when_it_is_given_as_a_document(indexed):
    hit = next(hit for hit in indexed.search("pump", k=100) if hit.source.chunk == 1)
    message = Message("user", (Passage(hit.text, title=hit.source.title), "What pump?"))
    answer = indexed.chat([message]).complete()
    assert (answer.hits, answer.misses) == (1, 0)


def test_without_a_preamble_a_library_keeps_chunks_that_stand_alone(open_library, tmp_path):
    library = open_library(engine=tiny_engine(preamble=""))
    (tmp_path / "pumps.txt").write_text(TEXT)
    library.add([tmp_path / "pumps.txt"])
    for chunk in in_order(library):
        assert chunk.key == library.engine.chunk_key(library.store.key_namespace, chunk.token_ids)
