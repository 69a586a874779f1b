"""Texts under ids of the caller's own: kept, found, changed and removed like documents."""

from __future__ import annotations

import numpy as np
import pytest

from ragblend import GenerationSettings, TextDocument
from ragblend.errors import ConfigError, LibraryError, LibraryMismatchError

WARRANTY = TextDocument("w", "The warranty of the robot lasts two years.", {"page": 3, "tags": ["law"]})
BATTERY = TextDocument("b", "The battery is charged in ninety minutes.")


def ids(hits) -> list[str]:
    return [hit.document for hit in hits]


def test_what_was_added_is_there(library):
    assert library.texts.add([WARRANTY, BATTERY]) == 2
    assert library.texts.get(["b", "unknown", "w"]) == [BATTERY, WARRANTY]
    assert library.texts.ids() == ["b", "w"]


def test_a_text_may_fill_what_the_context_has_behind_the_anchor(library):
    room = library.engine.chunk_room
    assert library.texts.add([TextDocument("t", "x" * room)]) == 1
    assert library.precompute(["y" * room, "y" * (room + 1)]).computed == 1
    with pytest.raises(ConfigError, match=f"{room + 1:,} tokens, but the context has room for {room:,}: split it"):
        library.texts.add([TextDocument("u", "x" * (room + 1))])


def test_texts_are_found_with_their_metadata(library):
    library.texts.add([WARRANTY, BATTERY])
    best, other = library.search("How long does the warranty last?", k=2)
    assert (best.document, best.text, best.metadata) == ("w", WARRANTY.text, {"page": 3, "tags": ["law"]})
    assert best.score > other.score
    assert np.linalg.norm(best.embedding) == pytest.approx(1)


def test_texts_and_files_are_found_together(library, docs):
    library.add([docs])
    (hit,) = library.search("battery", k=1)
    assert hit.prompt_text == "[Battery]\nThe battery is charged in ninety minutes."
    library.texts.add([TextDocument("t", "The warranty of the mower lasts two years.")])
    hits = library.search("How long does the warranty last?", k=2)
    assert {hit.metadata is None for hit in hits} == {True, False}
    assert library.info().documents == 4


def test_a_text_is_one_chunk_as_it_stands(library, watched, open_library):
    library = open_library(engine=watched)
    library.texts.add([TextDocument("t", "\n Two words\n")])
    assert watched.prefilled == [watched.template.bare_ids("Two words")]
    (hit,) = library.search("words", k=1)
    assert library.store.contains(hit.segment.key)
    assert hit.text == "\n Two words\n"


def test_adding_again_costs_nothing_and_a_change_replaces(library, watched, open_library):
    library = open_library(engine=watched)
    library.texts.add([WARRANTY, BATTERY])
    assert library.texts.add([WARRANTY, BATTERY]) == 0
    assert library.texts.add([TextDocument("w", WARRANTY.text, {"page": 4})]) == 1
    assert len(watched.prefilled) == 2
    library.texts.add([TextDocument("w", "Something else.")])
    assert library.texts.get(["w"])[0].text == "Something else."
    assert library.verify().ok
    assert library.verify().entries == 2
    assert not library.verify().orphans


def test_equal_texts_share_their_kv_and_keep_their_ids(library):
    library.texts.add([TextDocument("one", WARRANTY.text), TextDocument("two", WARRANTY.text)])
    assert ids(library.search("warranty", k=5)) == ["one", "two"]
    assert library.verify().entries == 1
    library.texts.remove(["one"])
    assert library.verify().ok
    assert library.texts.remove(["two"]) == 1
    assert library.store.nbytes() == 0


def test_removing_ignores_what_is_not_there(library):
    assert library.texts.remove(["x"]) == 0
    library.texts.add([WARRANTY])
    assert library.texts.remove(["x", "w"]) == 1
    assert library.texts.ids() == []


def test_a_search_may_ask_for_more_than_nearness(library):
    library.texts.add([TextDocument(str(i), f"warranty number {i}", {"i": i}) for i in range(40)])
    hits = library.search("warranty number 7", k=3, where=lambda hit: hit.metadata["i"] >= 38)
    assert sorted(ids(hits)) == ["38", "39"]


def test_an_answer_reads_them_with_a_blank_line_between(library):
    library.texts.add([WARRANTY, BATTERY])
    answer = library.ask("How long does the warranty last?", k=2, generation=GenerationSettings(max_tokens=2))
    assert [source.document for source in answer.sources] == ["w", "b"]
    chunk_tokens = sum(len(library.engine.template.bare_ids(text.text)) for text in (WARRANTY, BATTERY))
    assert answer.usage.cached_tokens == len(library.engine.template.prefix_ids) + chunk_tokens


def test_vectors_may_come_with_the_texts(library):
    library.texts.add([TextDocument("x", "one", {}, [2.0, 0.0]), TextDocument("y", "two", {}, [0.0, 0.5])])
    assert ids(library.search_vector([1.0, 0.1], k=1)) == ["x"]
    assert library.texts.get(["y"])[0].embedding == (0.0, 1.0)
    with pytest.raises(LibraryMismatchError, match="vectors given with the texts"):
        library.search("one")
    with pytest.raises(ConfigError, match=r"3 dimensions.*2"):
        library.search_vector([1.0, 0.0, 0.0])
    with pytest.raises(LibraryMismatchError):
        library.texts.add([TextDocument("z", "three", {}, [1.0, 2.0, 3.0])])


def test_a_question_may_be_embedded_first(library):
    library.texts.add([WARRANTY, BATTERY])
    question = "How long does the warranty last?"
    assert library.search_vector(library.embed(question), k=2) == library.search(question, k=2)


def test_an_empty_library_has_no_neighbours_but_a_question_says_so(library):
    assert library.search_vector([1.0, 0.0]) == []
    with pytest.raises(LibraryError, match="nothing is indexed"):
        library.search("anything")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (TextDocument("", "text"), "empty id"),
        (TextDocument("t", " \n"), "'t' is empty"),
        (TextDocument("t", "long " * 2000), "10,000 tokens|9,999 tokens"),
        (TextDocument("t", "text", {"when": object()}), "no JSON"),
        (TextDocument("t", "text", {"x": float("nan")}), "no JSON"),
        (TextDocument("t", "text", {}, [0.0, 0.0]), "not all zero"),
        (TextDocument("t", "text", {}, [1.0, float("inf")]), "finite"),
    ],
)
def test_bad_texts_are_refused_and_leave_nothing(library, text, cause):
    with pytest.raises(ConfigError, match=cause):
        library.texts.add([WARRANTY, text])
    assert library.texts.ids() == []
    assert library.store.nbytes() == 0


def test_a_text_cannot_take_the_place_of_a_file(library, docs):
    library.add([docs])
    with pytest.raises(ConfigError, match="is a file of the library"):
        library.texts.add([TextDocument(str(docs / "battery.md"), "text")])


def test_folders_do_not_own_texts(library, docs):
    library.texts.add([TextDocument(str(docs / "gone.md"), "a text whose id looks like a path")])
    assert library.add([docs]).removed == 0
    assert len(library.texts.ids()) == 1


def test_texts_need_a_model(open_library):
    with pytest.raises(LibraryError, match="opened without a model"):
        open_library(engine=None).texts.add([WARRANTY])
