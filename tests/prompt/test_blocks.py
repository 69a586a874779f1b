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


def test_short_ones_go_together_but_with_no_long_one():
    assert cut(f"# Robot\n\n## Warranty\n\n{LONG}\n\n{OTHER}") == ["# Robot\n\n## Warranty", LONG, OTHER]
    assert cut(f"{LONG}\n\nshort") == [LONG, "short"]
    short = "A line of about fifty characters that stands alone."
    assert cut("\n\n".join([short] * 5)) == [f"{short}\n\n{short}", f"{short}\n\n{short}", short]


def test_a_document_is_cut_alike_whatever_stands_before_it():
    """Splitters of text leave the heading of the next part at a document's end."""
    third, fourth = f"{LONG} Always.", f"{OTHER} Always."
    documents = [f"{LONG}\n\n## Battery", f"{OTHER}\n\nshort", f"# Robot\n\n{third}\n\n{fourth}"]
    orders = [documents, documents[::-1], documents[1:] + documents[:1]]
    long_ones = [{block for block in cut("\n\n".join(order)) if len(block) > 99} for order in orders]
    assert long_ones == [{LONG, OTHER, third, fourth}] * 3


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


def test_a_label_is_no_part_of_the_long_text_that_it_names():
    assert cut(f"Use it.\n\nContext: {LONG}\n\n{OTHER}") == ["Use it.\n\nContext:", LONG, OTHER]
    assert cut(f"  Relevant documents:\n{LONG}") == ["Relevant documents:", LONG]
    assert cut(f"Documents:\n\n{LONG}\n\n{OTHER}") == ["Documents:", LONG, OTHER]
    assert cut(f"文件：{LONG}") == ["文件：", LONG]


def test_a_label_ends_a_long_text_before_it():
    """LlamaIndex's refine prompt, and the one that most LangChain tutorials take."""
    refine = f"Rewrite the answer.\nNew Context: {LONG}\nQuery: how long?\nOriginal Answer: Two.\nNew Answer: "
    rest = "Query: how long?\nOriginal Answer: Two.\nNew Answer:"
    assert cut(refine) == ["Rewrite the answer.", "New Context:", LONG, rest]
    stuffed = f"Answer briefly.\nQuestion: how long? \nContext: {LONG}\n\n{OTHER} \nAnswer:"
    assert cut(stuffed) == ["Answer briefly.\nQuestion: how long?", "Context:", LONG, OTHER, "Answer:"]


def test_what_is_no_label_is_no_border():
    for line in ("https://example.org", "A sentence of five words: yes", "12: no"):
        long = LONG if line.startswith("A") else "short"
        assert cut(f"{OTHER}\n{line} {long}") == [f"{OTHER}\n{line} {long}"], line


def test_a_list_of_figures_stays_together():
    figures = "\n".join(f"Figure {letter}: {number} kilograms of grass" for number, letter in enumerate("abcdefgh"))
    assert cut(f"# Figures\n\n{figures}") == ["# Figures", figures]


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
