"""The example handbook and its questions: large enough, free of filler, and every answer stands in the text."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from ragblend.models.embedded import default_model_path

EXAMPLES = Path(__file__).parent.parent / "examples"
HANDBOOK = EXAMPLES / "handbook"


@dataclass(frozen=True)
class Paragraph:
    """A paragraph and where it stands: ``section`` is the document's name followed by its headings."""

    section: tuple[str, ...]
    text: str

    @property
    def document(self) -> str:
        return self.section[0]


def read_paragraphs(path: Path) -> Iterator[Paragraph]:
    headings: list[str] = []
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        if heading := re.fullmatch(r"(#+) (.+)", block):
            headings = [*headings[: len(heading[1]) - 1], heading[2]]
        else:
            yield Paragraph((path.name, *headings), block)


@cache
def paragraphs() -> tuple[Paragraph, ...]:
    return tuple(paragraph for path in sorted(HANDBOOK.glob("*.md")) for paragraph in read_paragraphs(path))


def questions() -> list[dict]:
    return [json.loads(line) for line in (EXAMPLES / "questions.jsonl").read_text(encoding="utf-8").splitlines()]


def sections_with(quote: str, documents: list[str]) -> set[tuple[str, ...]]:
    return {p.section for p in paragraphs() if p.document in documents and quote in p.text}


def repeated(texts: list[str]) -> list[str]:
    return [text for text, count in Counter(texts).items() if count > 1]


@pytest.fixture(params=questions(), ids=lambda question: question["id"])
def question(request) -> dict:
    return request.param


@pytest.mark.real_model
def test_the_handbook_has_at_least_25000_tokens():
    tokenizer = Tokenizer.from_file(str(default_model_path() / "tokenizer.json"))
    texts = [path.read_text(encoding="utf-8") for path in HANDBOOK.glob("*.md")]
    assert sum(len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts) >= 25_000


def test_every_document_has_one_title_and_several_sections():
    for path in HANDBOOK.glob("*.md"):
        headings = re.findall(r"^(#+) ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert headings[0] == "#"
        assert headings.count("#") == 1
        assert headings.count("##") >= 3


def test_nothing_is_said_twice():
    sentences = [s for p in paragraphs() for s in re.split(r"(?<=[.?!])\s+", p.text)]
    assert repeated([p.text for p in paragraphs()]) == []
    assert repeated(sentences) == []


def test_there_are_60_different_questions_and_at_least_20_need_two_places():
    asked = questions()
    assert len(asked) == 60
    assert repeated([question["id"] for question in asked]) == []
    assert repeated([question["question"] for question in asked]) == []
    assert sum(question["hops"] == 2 for question in asked) >= 20


def test_the_questions_reach_every_document():
    named = {document for question in questions() for document in question["documents"]}
    assert named == {path.name for path in HANDBOOK.glob("*.md")}


def test_each_quote_stands_verbatim_in_a_named_document(question):
    used = set()
    for quote in question["evidence"]:
        found = sections_with(quote, question["documents"])
        assert found, quote
        used |= {section[0] for section in found}
    assert used == set(question["documents"])


def test_a_question_has_as_many_places_as_hops(question):
    assert question["hops"] in (1, 2)
    assert len(question["evidence"]) == question["hops"]
    if question["hops"] == 2:
        first, second = (sections_with(quote, question["documents"]) for quote in question["evidence"])
        assert first.isdisjoint(second)


def test_an_accepted_answer_stands_in_the_evidence_and_is_short(question):
    evidence = " ".join(question["evidence"]).casefold()
    assert any(answer.casefold() in evidence for answer in question["answers"])
    assert all(1 <= len(answer.split()) <= 6 for answer in question["answers"])


def test_the_second_place_is_needed(question):
    """In a two-place question the place that identifies the subject does not hold the answer."""
    if question["hops"] == 2:
        identifies = question["evidence"][0].casefold()
        standalone = [rf"(?<![\w.,]){re.escape(answer.casefold())}(?!\w)" for answer in question["answers"]]
        assert not any(re.search(pattern, identifies) for pattern in standalone)
