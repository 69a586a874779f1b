"""Blocks of prompt text that may come again."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ragblend.prompt.blocks import blocks

LONG = "The warranty of the robot lasts two years, covers all of its parts, and does not end when the robot is sold."
OTHER = "The battery of the robot is charged in ninety minutes at the station, which has to stand in a shaded place."


def cut(text: str) -> list[str]:
    return [text[start:end] for start, end in blocks(text)]


def test_end_at_blank_lines():
    assert cut(f"\n{LONG}\n\n{OTHER}\n \t\n\n{LONG}  ") == [LONG, OTHER, LONG]


def test_lines_stay_together():
    assert cut(f"{LONG}\n{OTHER}") == [f"{LONG}\n{OTHER}"]


def test_short_ones_go_with_what_follows():
    assert cut(f"# Robot\n\n## Warranty\n\n{LONG}\n\n{OTHER}") == [f"# Robot\n\n## Warranty\n\n{LONG}", OTHER]
    assert cut(f"{LONG}\n\nshort") == [LONG, "short"]


def test_drawn_lines_set_apart():
    for line in ("---------------------", "===", "* * *".replace(" ", ""), "  ____  "):
        prompt = (
            f"Context information is below.\n{line}\n{LONG}\n\n{OTHER}\n{line}\nAnswer the query.\nQuery: how long?"
        )
        assert cut(prompt) == ["Context information is below.", LONG, OTHER, "Answer the query.\nQuery: how long?"]


def test_dashes_in_a_line_do_not():
    assert cut(f"{LONG} --- {OTHER}\n- one\n- two\n--\n|---|---|") == [
        f"{LONG} --- {OTHER}\n- one\n- two\n--\n|---|---|"
    ]


def test_nothing():
    assert (cut(""), cut(" \n\n---\n\n \n")) == ([], [])


@given(st.text(st.sampled_from("ab \n-=\t"), max_size=400))
def test_lose_no_text(text):
    found = list(blocks(text))
    assert all(start < end and text[start:end].strip() == text[start:end] for start, end in found)
    assert all(before <= start for (_, before), (start, _) in pairwise(found))
    edges = [0, *(edge for block in found for edge in block), len(text)]
    outside = "".join(text[edges[at] : edges[at + 1]] for at in range(0, len(edges), 2))
    assert not set(outside) & {"a", "b"}
