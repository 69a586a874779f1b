"""Texts that a program gives as pieces of a document are prefilled behind the pieces before them."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
import torch

from ragblend import GenerationSettings, Library, Message, Passage, TextDocument
from ragblend.config import ReuseSettings
from ragblend.errors import ConfigError
from ragblend.library.sections import CONTEXT_TOKENS, SECTION_TOKENS
from ragblend.store.base import ChunkKV, read_whole
from tests.library.conftest import tiny_engine

SHORT = GenerationSettings(max_tokens=2)
WAIT_S = 60.0
PIECES = [f"Paragraph {number} tells at length of the {word} pump." for number, word in enumerate(["red", "blue"] * 2)]
OTHER = "Blades are changed every spring by the gardener."


def passages(texts, document="pumps.md") -> list[Passage]:
    return [Passage(text, document=document) for text in texts]


def given(texts, document="pumps.md", name="text") -> list[TextDocument]:
    return [TextDocument(f"{name} {number}", text, document=document) for number, text in enumerate(texts)]


def key_of(library: Library, text: str) -> str:
    """Of the entry that a prompt with this text gets."""
    chunk = library._reuse._reader._known.chunk(text)
    assert chunk is not None
    assert chunk.key is not None
    return chunk.key


def key_behind(library: Library, text: str, before: list[str]) -> str:
    ids = library.engine.template.text_ids
    context = [token for piece in before for token in (*ids(piece), *ids("\n\n"))]
    return library.engine.chunk_key(library.store.key_namespace, ids(text), context_ids=context)


def stored(library: Library, key: str, text: str) -> ChunkKV:
    ids = tuple(library.engine.template.text_ids(text))
    reader = library.store.open(key, ids)
    assert reader is not None
    with closing(reader):
        return read_whole(reader, ids)


def assert_same(one: ChunkKV, other: ChunkKV) -> None:
    for ours, theirs in zip(one.layers, other.layers, strict=True):
        torch.testing.assert_close(ours.keys, theirs.keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours.values, theirs.values, atol=1e-4, rtol=1e-4)


def context_count(library: Library) -> int:
    [(count,)] = library.catalogue.rows("SELECT count(*) FROM contexts")
    return int(count)


@pytest.fixture(params=["precompute", "texts.add"])
def give(request):
    """Gives a library consecutive pieces of one document, in either way."""

    def give(library: Library, texts, document: str = "pumps.md", name: str = "text") -> int:
        """Returns how many were computed, or for ``texts.add`` how many were new."""
        if request.param == "precompute":
            return library.precompute(passages(texts, document)).computed
        return library.texts.add(given(texts, document, name))

    return give


class TestPieces:
    def test_are_stored_as_computed_behind_those_before_them(self, library, give):
        assert give(library, PIECES) == len(PIECES)
        engine = library.engine
        for number, text in enumerate(PIECES):
            key = key_of(library, text)
            assert key == key_behind(library, text, PIECES[:number])
            before = tuple(engine.template.text_ids("".join(f"{piece}\n\n" for piece in PIECES[:number])))
            [expected] = engine.prefill([tuple(engine.template.text_ids(text))], contexts=[before])
            assert_same(stored(library, key, text), expected)

    def test_stand_alone_where_they_name_no_document(self, library, give):
        give(library, PIECES, document="")
        assert [key_of(library, text) for text in PIECES] == [key_behind(library, text, []) for text in PIECES]
        assert context_count(library) == 0

    def test_are_of_one_document_only_while_they_come_in_a_row(self, library):
        texts = [Passage(PIECES[0], document="a"), Passage(PIECES[1], document="b"), Passage(PIECES[2], document="a")]
        library.precompute([*texts, OTHER, Passage(PIECES[3], document="a")])
        for text in (*PIECES, OTHER):
            assert key_of(library, text) == key_behind(library, text, [])

    def test_one_call_knows_nothing_of_another(self, library, give):
        give(library, PIECES[:1])
        give(library, PIECES[1:2], name="later")
        assert key_of(library, PIECES[1]) == key_behind(library, PIECES[1], [])

    def test_may_be_too_short_to_be_known_and_stand_before_others_all_the_same(self, library):
        report = library.precompute(passages(["Pumps", *PIECES[:2]]))
        assert [skipped.path for skipped in report.skipped] == ["Pumps"]
        assert key_of(library, PIECES[1]) == key_behind(library, PIECES[1], ["Pumps", PIECES[0]])

    def test_stream_with_a_context_of_bounded_length(self, library, give, monkeypatch):
        seen = []
        prefill = library.engine.prefill

        def watched(chunks, *, contexts, **options):
            seen.extend(map(len, contexts))
            return prefill(chunks, contexts=contexts, **options)

        monkeypatch.setattr(library.engine, "prefill", watched)
        texts = [f"{PIECES[0]} Edition {number}, {'x' * 100}" for number in range(70)]
        give(library, (text for text in texts))
        assert len(seen) == 70
        assert seen.count(0) == 1  # batches do not begin anew
        assert CONTEXT_TOKENS < max(seen) <= CONTEXT_TOKENS + SECTION_TOKENS

    def test_stand_alone_without_a_preamble(self, open_library, give):
        library = open_library(engine=tiny_engine(preamble=""))
        give(library, PIECES)
        assert key_of(library, PIECES[1]) == key_behind(library, PIECES[1], [])

    def test_are_found_in_prompts_and_as_passages(self, library, give):
        give(library, PIECES)
        for content in (("\n\n".join(PIECES), "\n\nWhich?"), (*passages(PIECES), "Which?")):
            answer = library.chat([Message("user", content)], generation=SHORT).complete()
            assert (answer.hits, answer.misses) == (len(PIECES), 0)

    def test_are_found_as_passages_where_text_is_not_searched(self, open_library, give):
        library = open_library(reuse=ReuseSettings(find=False))
        give(library, PIECES)
        message = Message("user", (*passages(PIECES), PIECES[0], "\n\nWhich?"))
        answer = library.chat([message], generation=SHORT).complete()
        assert (answer.hits, answer.misses) == (len(PIECES), 0)

    def test_are_never_taken_for_exact(self, library, give):
        give(library, PIECES)
        chunks = [library._reuse._reader._known.chunk(text) for text in PIECES]
        assert [chunk.in_context for chunk in chunks] == [False, True, True, True]

    def test_of_a_search_are_never_taken_for_exact(self, library):
        library.texts.add(given(PIECES))
        hits = {hit.text: hit.segment.in_context for hit in library.search("pump", k=len(PIECES))}
        assert [hits[text] for text in PIECES] == [False, True, True, True]

    @pytest.mark.parametrize("document", [None, 3, b"pumps.md"])
    def test_name_their_document_by_a_string(self, library, document):
        with pytest.raises(ConfigError, match="must be named by a string"):
            library.precompute([Passage(PIECES[0], document=document)])
        with pytest.raises(ConfigError, match="document of text 't' must be named by a string"):
            library.texts.add([TextDocument("t", PIECES[0], document=document)])


class TestComingAgain:
    def test_behind_something_else_a_precomputed_text_stays_as_it_is(self, library):
        library.precompute(passages(PIECES[:2]))
        before = key_of(library, PIECES[1])
        for again in (passages(PIECES[1:2]), passages([OTHER, PIECES[1]]), [PIECES[1]]):
            assert library.precompute(again).unchanged == 1
        assert key_of(library, PIECES[1]) == before

    def test_within_one_call_the_first_counts(self, library):
        report = library.precompute([*passages(PIECES[:2]), *passages([OTHER, PIECES[1]], "other.md")])
        assert (report.computed, report.unchanged) == (3, 1)
        assert key_of(library, PIECES[1]) == key_behind(library, PIECES[1], PIECES[:1])

    def test_a_lost_one_is_computed_behind_what_it_stood_behind(self, library):
        library.precompute(passages(PIECES[:2]))
        key = key_of(library, PIECES[1])
        before = stored(library, key, PIECES[1])
        library.store.discard(key)
        assert library.precompute(passages([OTHER, PIECES[1]], "other.md")).computed == 2
        assert key_of(library, PIECES[1]) == key
        assert_same(stored(library, key, PIECES[1]), before)

    def test_a_text_with_other_metadata_keeps_its_kv(self, open_library, watched):
        library = open_library(engine=watched)
        library.texts.add(given(PIECES))
        key = key_of(library, PIECES[1])
        assert library.texts.add([TextDocument("text 1", PIECES[1], {"page": 2})]) == 1
        assert len(watched.prefilled) == len(PIECES)
        assert key_of(library, PIECES[1]) == key
        assert library.verify(audit=100).ok

    def test_at_the_same_time_behind_different_things_one_stays(self, library):
        texts = [passages([f"{OTHER} {name}", PIECES[1]], name) for name in "abcd"]
        threads = [threading.Thread(target=library.precompute, args=(each,)) for each in texts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        library.gc()
        assert library.info().texts == len(texts) + 1
        assert library.verify(audit=100).ok
        assert context_count(library) == 1


class TestLookingAfter:
    def test_an_audit_knows_what_they_stand_behind(self, library, give):
        give(library, PIECES)
        report = library.verify(audit=100)
        assert (report.audited, report.deviating) == (len(PIECES), ())

    def test_a_repair_computes_them_behind_it(self, library, give):
        give(library, PIECES)
        key = key_of(library, PIECES[2])
        before = stored(library, key, PIECES[2])
        library.store.delete(key)
        assert library.repair().recomputed == 1
        assert_same(stored(library, key, PIECES[2]), before)

    def test_what_is_lost_is_learned_again_behind_it(self, library, give):
        give(library, PIECES)
        key = key_of(library, PIECES[2])
        before = stored(library, key, PIECES[2])
        library.store.discard(key)
        asked = Message("user", (f"{PIECES[2]}\n\nWhich?",))
        assert library.chat([asked], generation=SHORT).complete().misses == 1
        assert library.wait(WAIT_S)
        assert_same(stored(library, key, PIECES[2]), before)
        assert library.chat([asked], generation=SHORT).complete().hits == 1

    def test_what_goes_changes_nothing_for_what_stood_behind_it(self, library, give):
        give(library, PIECES)
        key = key_of(library, PIECES[2])
        before = stored(library, key, PIECES[2])
        library.forget(PIECES[:2])
        library.texts.remove(["text 0", "text 1"])
        assert context_count(library) == 2
        library.store.delete(key)
        assert library.repair().recomputed == 1
        assert_same(stored(library, key, PIECES[2]), before)
        assert library.verify(audit=100).ok

    def test_a_context_goes_with_the_last_that_needs_its_entry(self, library):
        library.precompute(passages(PIECES))
        library.texts.add(given(PIECES))
        assert context_count(library) == len(PIECES) - 1
        library.forget(PIECES)
        assert context_count(library) == len(PIECES) - 1
        library.texts.remove(library.texts.ids())
        assert context_count(library) == 0

    def test_erasing_leaves_none(self, library, open_library, give):
        other = open_library(namespace="other")
        for each in (library, other):
            give(each, PIECES)
        library.erase()
        assert context_count(library) == len(PIECES) - 1
        assert other.verify(audit=100).ok


class TestOneTextTwice:
    """Behind different pieces it has two entries, and a prompt finds it once."""

    @pytest.fixture
    def twice(self, library) -> Library:
        library.texts.add(given([PIECES[0], OTHER], "a.md", "a"))
        library.texts.add(given([PIECES[1], OTHER], "b.md", "b"))
        library.precompute(passages([PIECES[2], OTHER], "c.md"))
        assert library.verify(audit=100).entries == 6
        return library

    def test_the_chunk_that_is_there_for_the_longest_time_counts(self, twice):
        assert key_of(twice, OTHER) == key_behind(twice, OTHER, PIECES[:1])
        twice.texts.remove(["a 1"])
        assert key_of(twice, OTHER) == key_behind(twice, OTHER, PIECES[1:2])
        twice.texts.remove(["b 1"])
        assert key_of(twice, OTHER) == key_behind(twice, OTHER, PIECES[2:3])

    def test_it_does_not_matter_when_a_process_looked(self, library, open_library):
        """One that has followed every change finds what one finds that opens the library now."""
        library.precompute(passages([PIECES[2], OTHER], "c.md"))
        follower = open_library()
        assert key_of(follower, OTHER) == key_behind(library, OTHER, PIECES[2:3])
        library.texts.add(given([PIECES[0], OTHER], "a.md", "a"))
        assert key_of(follower, OTHER) == key_behind(library, OTHER, PIECES[:1])
        library.texts.add(given([PIECES[1], OTHER], "b.md", "b"))
        assert key_of(follower, OTHER) == key_of(open_library(), OTHER) == key_behind(library, OTHER, PIECES[:1])

    def test_a_search_gets_each_chunk_with_its_own(self, twice):
        hits = {hit.document: hit.segment.key for hit in twice.search(OTHER, k=10)}
        assert hits["a 1"] == key_behind(twice, OTHER, PIECES[:1])
        assert hits["b 1"] == key_behind(twice, OTHER, PIECES[1:2])
