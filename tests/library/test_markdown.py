"""Headings and paragraphs of Markdown, found line by line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ragblend.library.markdown import parse_markdown, unwrap


def headings(text: str) -> list[tuple[int, str]]:
    return [(heading.level, heading.text) for heading in parse_markdown(text).headings]


def test_headings_of_both_kinds():
    text = "# One\n\nTwo\n===\n\nThree\n---\n\n### Four ###\n   ## Five\n"
    assert headings(text) == [(1, "One"), (1, "Two"), (2, "Three"), (3, "Four"), (2, "Five")]


def test_marks_that_close_a_heading_are_no_part_of_it():
    assert headings("# C #\n# C#\n# \n# ##\n") == [(1, "C"), (1, "C#"), (1, ""), (1, "")]


def test_long_lines_of_spaces_take_no_time():
    assert len(headings("# a" + " " * 1_000_000 + "b")) == 1


def test_markup_in_headings_is_dropped():
    assert headings("## The `foo` and *bar* of [baz](http://x.y) in snake_case") == [
        (2, "The foo and bar of baz in snake_case")
    ]


def test_what_only_looks_like_a_heading():
    assert headings("```\n# comment\n```\n\n#hashtag\n\n- item\n---\n\n| a |\n|---|\n\n---\n\n    # code\n") == []


def test_a_fence_ends_with_its_own_kind():
    assert headings("````\n```\n# in\n````\n# out\n") == [(1, "out")]


def test_headings_know_their_lines():
    document = parse_markdown("intro\n\n## A\n\ntext\n\nB\n-\n\nmore")
    assert [document.text[heading.start : heading.end] for heading in document.headings] == ["## A", "B\n-"]


def test_title_is_the_front_matters_or_the_first_outermost_heading():
    assert parse_markdown("---\ntitle: 'The manual'\nlang: en\n---\n# Chapter\n\ntext").title == "The manual"
    assert parse_markdown("## Part\n\n# Chapter\n\ntext").title == "Chapter"
    assert parse_markdown("## Part\n\ntext").title == ""


def test_front_matter_is_no_text_and_no_heading():
    document = parse_markdown("---\ntitle: x\n---\nbody")
    assert (document.text, document.headings) == ("body", ())


def test_heading_path_leaves_out_the_title_and_closed_headings():
    document = parse_markdown("# Manual\n\na\n\n## Care\n\nb\n\n### Winter\n\nc\n\n## Repair\n\nd\n")
    paths = [document.heading_path(document.text.index(letter + "\n\n")) for letter in "abc"]
    assert paths == ["", "Care", "Care > Winter"]
    assert document.heading_path(len(document.text)) == "Repair"


def test_an_empty_heading_is_no_part_of_a_path():
    document = parse_markdown("# Manual\n\n## \n\n### Winter\n\na")
    assert document.heading_path(len(document.text)) == "Winter"


class TestUnwrap:
    LONG = "This line is long enough to have been wrapped by an editor"

    def test_wrapped_lines_become_one(self):
        assert unwrap(f"{self.LONG}\nand goes on.\n\nNext") == f"{self.LONG} and goes on.\n\nNext"

    def test_lines_that_start_something_stay(self):
        for start in ("- item", "* item", "3. item", "> quote", "| cell |", "# Title", "```", "    code", "---", "==="):
            assert unwrap(f"{self.LONG}\n{start}") == f"{self.LONG}\n{start}"

    def test_emphasis_and_numbers_start_nothing(self):
        assert unwrap(f"{self.LONG}\n*very* long\n") == f"{self.LONG} *very* long\n"

    def test_short_lines_and_hard_breaks_stay(self):
        for text in ("Roses are red,\nviolets are blue", f"{self.LONG}  \nnext", f"{self.LONG}\\\nnext"):
            assert unwrap(text) == text

    def test_fenced_code_and_tables_stay(self):
        for text in (f"```\n{self.LONG}\nx = 1\n```\n", f"| {self.LONG} |\nnext"):
            assert unwrap(text) == text

    @given(st.text(alphabet="ab #-`|\n", max_size=200))
    def test_only_line_breaks_change_and_no_offset(self, text):
        unwrapped = unwrap(text)
        assert len(unwrapped) == len(text)
        assert all(new == old or (old, new) == ("\n", " ") for old, new in zip(text, unwrapped, strict=True))
