"""Search: best first, the same every time, and never what is no longer there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ragblend.errors import ConfigError, LibraryError


def documents(hits) -> list[str]:
    return [Path(hit.document).name for hit in hits]


def test_best_first_with_scores(library, docs):
    library.add([docs])
    hits = library.search("How long does the warranty last?", k=3)
    assert documents(hits)[0] == "warranty.md"
    scores = [hit.score for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert 0.2 < scores[0] <= 1


def test_scores_are_cosines_with_the_chunk_as_the_model_reads_it(library, docs, embedder):
    library.add([docs])
    question = embedder.embed_question("warranty")
    for hit in library.search("warranty", k=3):
        text = library.engine.tokenizer.decode(hit.segment.token_ids)
        assert hit.score == pytest.approx(float(embedder.embed_question(text) @ question), abs=1e-3)


def test_a_hit_is_a_segment_with_key_and_source(library, docs):
    library.add([docs])
    (hit,) = library.search("battery", k=1)
    assert hit.segment.kind == "chunk"
    assert library.store.contains(hit.segment.key)
    assert hit.segment.token_ids == library.engine.template.chunk_ids("Battery", "", hit.text)
    assert (hit.segment.source, hit.source.title, hit.source.chunk) == (hit.source, "Battery", 0)
    assert hit.document == str(docs / "battery.md")


def test_more_than_there_are(library, docs):
    library.add([docs])
    assert len(library.search("robot", k=100)) == 3


@pytest.mark.parametrize("k", [0, -1])
def test_k_is_at_least_one(library, docs, k):
    library.add([docs])
    with pytest.raises(ConfigError, match=f"k must be at least 1, got {k}"):
        library.search("robot", k)


@pytest.mark.parametrize("question", ["", " \n"])
def test_the_question_is_not_empty(library, question):
    with pytest.raises(ConfigError, match="the question is empty"):
        library.search(question)


def test_an_empty_library_says_what_to_do(library):
    with pytest.raises(LibraryError, match=r"nothing is indexed in namespace 'default' yet: add documents first"):
        library.search("robot")


def test_equal_scores_are_ordered_by_document_and_position(library, tmp_path):
    names = "cabdefghij"
    for number, name in enumerate(names):  # the same words in another order: equal vectors, different chunks
        words = np.roll(["robots", "mow", "the", "lawn", "in", "front", "of", "a", "garden", "house"], number)
        (tmp_path / f"{name}.txt").write_text(" ".join(words))
    library.add([tmp_path / f"{name}.txt" for name in names])
    for k in (1, 3, 8):
        assert documents(library.search("lawn", k)) == [f"{name}.txt" for name in "abcdefgh"[:k]]


def test_copies_of_a_chunk_are_found_once(library, docs):
    for number in range(50):
        (docs / f"copy-{number:02}.txt").write_text((docs / "blades.txt").read_text())
    library.add([docs])
    assert documents(library.search("blades in spring", k=3)) == ["blades.txt", "battery.md", "warranty.md"]


class TestFollowsTheCatalogue:
    def test_what_another_opening_adds_and_removes(self, open_library, docs):
        reader, writer = open_library(), open_library()
        writer.add([docs / "battery.md"])
        assert documents(reader.search("warranty")) == ["battery.md"]
        writer.add([docs / "warranty.md"])
        assert documents(reader.search("warranty")) == ["warranty.md", "battery.md"]
        writer.remove([docs / "battery.md"])
        assert documents(reader.search("battery")) == ["warranty.md"]

    def test_without_its_file(self, open_library, docs):
        with open_library() as library:
            library.add([docs])
            expected = library.search("battery")
            library._retriever.path.unlink()
        assert open_library().search("battery") == expected

    def test_with_a_damaged_file(self, open_library, docs):
        with open_library() as library:
            library.add([docs])
            expected = library.search("battery")
            library._retriever.path.write_bytes(b"not an index")
        assert open_library().search("battery") == expected

    def test_with_a_file_of_another_library(self, open_library, docs, tmp_path):
        with open_library(tmp_path / "other.rag") as other:
            other.add([docs / "blades.txt"])
            foreign = other._retriever.path.read_bytes()
        library = open_library()
        library.add([docs / "battery.md"])
        library._retriever.path.write_bytes(foreign)
        assert documents(open_library().search("blades")) == ["battery.md"]


class TestNamespaces:
    def test_nothing_crosses(self, open_library, docs):
        ours, theirs = open_library(namespace="ours"), open_library(namespace="theirs")
        ours.add([docs / "battery.md"])
        theirs.add([docs / "warranty.md"])
        assert documents(ours.search("warranty")) == ["battery.md"]
        assert documents(theirs.search("warranty")) == ["warranty.md"]

    def test_the_same_document_has_its_own_kv_in_each(self, open_library, docs):
        ours, theirs = open_library(namespace="ours"), open_library(namespace="theirs")
        for library in (ours, theirs):
            assert library.add([docs / "battery.md"]).indexed == 1
        (hit,), (other,) = ours.search("battery"), theirs.search("battery")
        assert hit.segment.token_ids == other.segment.token_ids
        assert hit.segment.key != other.segment.key
        ours.remove([docs / "battery.md"])
        assert theirs.verify().ok
        assert theirs.store.contains(other.segment.key)

    def test_an_empty_name_is_refused(self, open_library):
        with pytest.raises(ConfigError, match="the namespace is empty"):
            open_library(namespace="")
