"""Chunks are found by what a few of their sentences say, as well as by the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragblend.library.windows import windows

ONE, TWO, THREE = "The warranty lasts two years.", "It covers all parts!", "Who pays for the parcel?"


class TestCutting:
    @pytest.mark.parametrize("text", ["", ONE, f"{ONE} {TWO}", "no full stop anywhere in it"])
    def test_little_text_has_none(self, text):
        assert windows(text) == []

    def test_two_sentences_each(self):
        assert windows(f"{ONE} {TWO} {THREE}") == [f"{ONE} {TWO}", THREE]
        assert windows(f"{ONE} {TWO}  {THREE}\n{ONE}") == [f"{ONE} {TWO}", f"{THREE} {ONE}"]

    def test_lines_end_sentences(self):
        assert windows("| a | 1 |\n| b | 2 |\n\n- one\n- two") == ["| a | 1 | | b | 2 |", "- one - two"]

    def test_points_inside_numbers_do_not(self):
        assert windows(f"It costs 4.90 euros. See section 3.2 of v1.0. {ONE}") == [
            "It costs 4.90 euros. See section 3.2 of v1.0.",
            ONE,
        ]

    def test_closing_quotes_and_chinese(self):
        assert windows(f'He said "no." {TWO} {ONE}')[1] == ONE
        assert windows("保修期为两年。电池需要九十分钟。刀片每年更换。") == [
            "保修期为两年。 电池需要九十分钟。",
            "刀片每年更换。",
        ]

    @given(st.text(st.sampled_from('ab.!?。\n ")'), max_size=200))
    def test_no_word_is_lost(self, text):
        found = windows(text)
        letters = "".join(character for character in text if character in "ab")
        assert not found or "".join(c for c in "".join(found) if c in "ab") == letters


@pytest.fixture
def long_document(tmp_path):
    """One sentence of interest among many others."""
    folder = tmp_path / "long"
    folder.mkdir()
    others = [f"Part number {number} is green." for number in range(8)]
    (folder / "parts.txt").write_text(" ".join([*others[:4], "The parcel is paid by us.", *others[4:]])[:120])
    (folder / "parcels.txt").write_text(
        "Parcels are heavy. Parcels are brown. Parcels come on Monday. They go by ship."
    )
    return folder


class TestSearch:
    def test_scores_are_the_mean_of_the_whole_s_and_the_best_window_s(self, library, long_document, embedder):
        library.add([long_document])
        question = embedder.embed_question("brown parcels")
        for hit in library.search("brown parcels", k=2):
            pieces = windows(hit.text)
            assert pieces
            whole, *parts = (float(embedder.embed_question(text) @ question) for text in (hit.text, *pieces))
            assert hit.score == pytest.approx((whole + max(parts)) / 2, abs=2e-4)  # kept in float16

    def test_each_chunk_is_found_once(self, library, long_document):
        library.add([long_document])
        hits = library.search("parcels", k=10)
        assert len({hit.segment.key for hit in hits}) == len(hits) == library.info().chunks

    def test_a_hit_has_the_vector_of_the_whole(self, library, long_document, embedder):
        library.add([long_document])
        [hit] = library.search("brown parcels", k=1)
        np.testing.assert_allclose(hit.embedding, embedder.embed_question(hit.text), rtol=1e-6)

    def test_windows_go_with_their_document(self, library, long_document):
        library.add([long_document])
        assert library.catalogue.rows("SELECT count(*) FROM windows") != [(0,)]
        library.remove([long_document / "parcels.txt"])
        assert all(hit.document.endswith("parts.txt") for hit in library.search("parcels", k=10))
        library.remove([long_document])
        assert library.catalogue.rows("SELECT count(*) FROM windows") == [(0,)]

    def test_the_index_is_rebuilt_from_the_catalogue_with_them(self, open_library, long_document):
        with open_library() as library:
            library.add([long_document])
            assert library.verify().index_ok
            expected = [(hit.document, hit.score) for hit in library.search("brown parcels")]
            library._retriever.path.unlink()
        assert [(hit.document, hit.score) for hit in open_library().search("brown parcels")] == expected
