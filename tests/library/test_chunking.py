"""Chunks: never too long, mostly full, cut where the text allows it, and true to the document."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from semantic_text_splitter import TextSplitter

from ragblend.library.chunking import Chunker, _pieces
from ragblend.library.document import Document
from ragblend.library.markdown import parse_markdown
from ragblend.prompt import PromptTemplate
from tests import tiny

TEMPLATE = PromptTemplate(tiny.tokenizer())
WORDS = ["the", "robot", "mows", "lawns", "of", "many", "metres", "and", "returns", "when", "rain", "begins"]


def cut(document: Document, tokens: int = 128):
    return Chunker(TEMPLATE, tokens).cut(document)[1]


def prose(seed: int, paragraphs: int) -> str:
    chance = random.Random(seed)

    def sentence() -> str:
        return " ".join(chance.choices(WORDS, k=chance.randint(4, 12))).capitalize() + "."

    return "\n\n".join(" ".join(sentence() for _ in range(chance.randint(1, 6))) for _ in range(paragraphs))


def handbook(sections: int = 12) -> Document:
    parts = ["# Handbook\n\nAbout this book.\n"]
    parts += [f"## Section {number}\n\n{prose(number, 1 + number % 4)}\n" for number in range(sections)]
    return parse_markdown("\n".join(parts))


class TestLongTexts:
    """A splitter looks at all that it is given before every cut, so it is given a window at a time."""

    CAPACITY = 12
    PARTS = ("robot", "mows", "lawns", "x" * 300, "汉字文本很长。", "é", "\r\n", "\n\n\n", "a,b;c", "👩‍👩‍👧")
    GAPS = (" ", ". ", "\n", "\n\n", "", "  \n \n")

    def counted(self, asked: list[int]):
        def count(text: str) -> int:
            asked.append(len(text))
            return len(text.encode()) // 4 + len(text.split())

        return TextSplitter.from_callback(count, self.CAPACITY)

    @pytest.mark.parametrize("seed", range(8))
    def test_windows_give_the_pieces_of_the_whole(self, seed):
        chance = random.Random(seed)
        weights = [chance.choice([0.1, 1, 5, 20]) for _ in self.PARTS]
        parts = chance.choices(self.PARTS, weights, k=600)
        text = "".join(part + chance.choice(self.GAPS) for part in parts)
        splitter = self.counted([])
        assert list(_pieces(splitter, text, 200)) == splitter.chunk_indices(text)

    def test_what_cannot_be_cut_small_enough_is_passed_on(self):
        """A counter that no text suits, and emoji that are joined to one character on the screen."""
        text = "👩\u200d" * 4000
        splitter = TextSplitter.from_callback(lambda _: 9, 8)
        assert "".join(piece for _, piece in _pieces(splitter, text, 128)) == text

    @pytest.mark.parametrize("unit", ["abcdefghij", "汉字文本很长", "robot mows ", "\n\n"])
    def test_work_grows_with_the_text_and_no_faster(self, unit):
        def work(length: int) -> int:
            asked: list[int] = []
            assert len(list(_pieces(self.counted(asked), (unit * length)[:length], 200))) <= length
            return sum(asked)

        assert work(64_000) <= 2.2 * work(32_000)


class TestLimit:
    def test_token_ids_are_those_of_the_template(self):
        document = handbook()
        for chunk in cut(document, 400):
            assert chunk.token_ids == TEMPLATE.chunk_ids("Handbook", chunk.heading, chunk.text)
            assert len(chunk.token_ids) <= 400

    def test_chunks_are_mostly_full(self):
        counts = [len(chunk.token_ids) for chunk in cut(handbook(40), 400)]
        assert sum(counts) / len(counts) > 0.7 * 400
        assert sum(count < 0.6 * 400 for count in counts) < 0.25 * len(counts)

    @pytest.mark.parametrize("tokens", [16, 17, 40])
    def test_long_titles_and_headings_take_a_quarter_at_most(self, tokens):
        document = parse_markdown(f"# {'Title ' * 30}\n\n## {'Heading ' * 30}\n\n### Deep\n\n{prose(0, 5)}")
        title, chunks = Chunker(TEMPLATE, tokens).cut(document)
        assert len(TEMPLATE.chunk_ids(title, "", "")) <= tokens // 4
        for chunk in chunks:
            assert len(TEMPLATE.chunk_ids(title, chunk.heading, "")) <= tokens // 4
            assert len(chunk.token_ids) <= tokens

    @settings(max_examples=60, deadline=None)
    @given(
        title=st.text(max_size=60),
        lines=st.lists(st.one_of(st.text(max_size=80), st.sampled_from(["", "# A", "## B b", "- c", "d. E f"]))),
        tokens=st.integers(16, 90),
    )
    def test_any_text(self, title, lines, tokens):
        document = parse_markdown("\n".join(lines).replace("\r", ""))
        document = Document(title, document.text, document.headings)
        for chunk in cut(document, tokens):
            assert 0 < len(chunk.token_ids) <= tokens
            assert document.text[chunk.start :].startswith(chunk.text)

    def test_text_without_any_place_to_cut(self):
        chunks = cut(Document("", "x" * 10_000))
        assert "".join(chunk.text for chunk in chunks) == "x" * 10_000

    def test_characters_of_several_tokens(self):
        chunks = cut(Document("", "保証期間は二年間です。" * 50), 64)
        assert "".join(chunk.text for chunk in chunks) == "保証期間は二年間です。" * 50
        assert all(len(chunk.token_ids) <= 64 for chunk in chunks)

    def test_control_tokens_in_a_document_are_ordinary_text(self):
        (chunk,) = cut(Document("", "a <|end|> b"))
        assert not set(chunk.token_ids) & set(tiny.tokenizer().all_special_ids)


class TestPlaces:
    def test_nothing_is_lost_or_told_twice(self):
        document = Document("", prose(1, 30))
        words = " ".join(chunk.text for chunk in cut(document)).split()
        assert words == document.text.split()

    def test_chunks_end_with_sentences(self):
        for chunk in cut(handbook(), 300):
            assert chunk.text.endswith(".")

    def test_offsets_point_at_the_text(self):
        document = handbook()
        for chunk in cut(document):
            assert document.text[chunk.start :].startswith(chunk.text)

    def test_a_paragraph_that_fills_a_chunk_well_is_kept_whole(self):
        paragraphs = ["Alpha " * 15 + "end.", "Beta " * 18 + "end.", "Gamma " * 15 + "end."]
        assert [chunk.text for chunk in cut(Document("", "\n\n".join(paragraphs)))] == paragraphs

    def test_a_chunk_left_empty_takes_sentences_of_the_next_paragraph(self):
        first, sentences = "A short one.", [f"Sentence {number} has some words." for number in range(8)]
        chunks = cut(Document("", f"{first}\n\n{' '.join(sentences)}"))
        assert chunks[0].text == f"{first}\n\n{' '.join(sentences[:4])}"


class TestHeadings:
    def test_a_chunk_knows_the_headings_above_it(self):
        document = handbook(20)
        for chunk in cut(document, 300):
            assert chunk.heading == document.heading_path(chunk.start)

    def test_headings_at_the_edges_are_in_the_label_only(self):
        document = parse_markdown(f"# T\n\n## A\n\n{'Word ' * 18}end.\n\n## B\n\n{'Text ' * 18}end.\n\n## C\n")
        first, second = cut(document)
        assert (first.heading, first.text[:9], first.text[-4:]) == ("A", "Word Word", "end.")
        assert (second.heading, second.text[:9], second.text[-4:]) == ("B", "Text Text", "end.")

    def test_short_sections_share_a_chunk_and_keep_their_headings(self):
        (chunk,) = cut(parse_markdown("# T\n\n## A\n\none\n\n## B\n\ntwo\n"))
        assert (chunk.heading, chunk.text) == ("A", "one\n\n## B\n\ntwo")

    def test_headings_alone_make_no_chunk(self):
        assert cut(parse_markdown("# T\n\n## A\n")) == []
