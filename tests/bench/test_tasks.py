"""Made-up questions: that the passages hold the answer, spread over several of them, and that a seed repeats them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ragblend.bench.data import Example, read_examples
from ragblend.bench.tasks import KINDS, make_examples, write_examples
from ragblend.errors import ConfigError

SEEDS = range(20)


def one(kind: str, seed: int, passages: int = 8) -> Example:
    [example] = make_examples(seed=seed, count=1, kinds=[kind], passages=passages, words=30)
    return example


def text(example: Example) -> str:
    return " ".join(passage.text for passage in example.passages)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("passages", [4, 5, 8, 32])
def test_every_kind_fills_the_passages(kind: str, passages: int) -> None:
    example = one(kind, 0, passages)
    assert len(example.passages) == passages
    assert all(30 <= len(passage.text.split()) < 60 for passage in example.passages)
    assert [passage.title for passage in example.passages] == [f"Report {n + 1}" for n in range(passages)]


def test_a_seed_gives_the_same_questions_and_another_seed_others() -> None:
    first, again, other = (make_examples(seed=seed, count=3) for seed in (1, 1, 2))
    assert first == again
    assert [example.id for example in first] == [f"{kind}-{number}" for kind in KINDS for number in range(3)]
    assert all(one.passages != two.passages for one, two in zip(first, other, strict=True))


def test_a_question_stays_when_others_are_left_out() -> None:
    assert make_examples(seed=5, count=1, kinds=["versions"])[0] in make_examples(seed=5, count=2)


@pytest.mark.parametrize("seed", SEEDS)
def test_needle(seed: int) -> None:
    example = one("needle", seed)
    [place] = re.findall(r"vault in (\w+)\?", example.question)
    assert re.findall(rf"vault in {place} is (\d+)", text(example)) == list(example.answers)


@pytest.mark.parametrize("seed", SEEDS)
def test_tracing(seed: int) -> None:
    example = one("tracing", seed)
    sources = dict(re.findall(r"variable (X\d+) has the value (?:of )?(X?\d+)", text(example)))
    [name] = re.findall(r"X\d+", example.question)
    steps = 0
    while name in sources:
        name, steps = sources[name], steps + 1
    assert (name,) == example.answers
    assert steps == 4


@pytest.mark.parametrize("seed", SEEDS)
def test_two_hop(seed: int) -> None:
    example = one("two-hop", seed)
    [person] = re.findall(r"works that (.+) is the head", example.question)
    [firm] = re.findall(rf"{person} is the head of the (\w+) works", text(example))
    assert re.findall(rf"The {firm} works are in the town of (\w+)", text(example)) == list(example.answers)
    together = [passage for passage in example.passages if person in passage.text and "town of" in passage.text]
    assert not together


@pytest.mark.parametrize("seed", SEEDS)
def test_ordering(seed: int) -> None:
    example = one("ordering", seed)
    years = {place: int(year) for place, year in re.findall(r"bridge of (\w+) was opened in (\d+)", text(example))}
    asked = re.findall(r"[A-Z]\w+", example.question.partition(":")[2])
    assert len(asked) == 3
    assert (min(asked, key=lambda place: years[place]),) == example.answers


@pytest.mark.parametrize("seed", SEEDS)
def test_counting(seed: int) -> None:
    example = one("counting", seed)
    assert example.answers[1] == str(text(example).count("reported a flood"))
    assert 2 <= int(example.answers[1]) < 8


@pytest.mark.parametrize("seed", SEEDS)
def test_versions(seed: int) -> None:
    example = one("versions", seed)
    [product] = re.findall(r"does the (\w+) carry", example.question)
    stated = re.findall(rf"Version (\d+) of the manual says that the {product} carries at most (\d+)", text(example))
    assert max(stated, key=lambda each: int(each[0]))[1] == example.answers[0]
    assert len({limit for _, limit in stated}) == len(stated) == 6


def test_a_file_is_what_bench_quality_reads(tmp_path: Path) -> None:
    examples = make_examples(seed=0, count=2)
    write_examples(examples, tmp_path / "tasks.jsonl")
    assert read_examples(tmp_path / "tasks.jsonl") == examples
    with pytest.raises(ConfigError, match="name a file that can be written"):
        write_examples(examples, tmp_path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"count": 0}, "count must be at least 1"),
        ({"passages": 3}, "passages must be 4 to 32, got 3"),
        ({"passages": 33}, "passages must be 4 to 32, got 33"),
        ({"words": 0}, "words must be at least 1"),
        ({"kinds": ["riddle"]}, "unknown kind 'riddle': choose from needle"),
    ],
)
def test_refused(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make_examples(**{"seed": 0, "count": 1, **change})
