"""Questions that only several passages together answer, made from a seed: what reuse of single chunks may break.

The kinds follow what long-context tests ask (RULER's needles and variable tracing, multi-hop questions). The passages
are made of invented sentences, so no model knows an answer from elsewhere. Facts stand at random places, each in
another passage, among facts of the same form that the question does not ask about.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from ragblend.bench.data import Example, Passage
from ragblend.bench.wording import NUMBERS, PEOPLE, PLACES, PRODUCTS, filler
from ragblend.config import require
from ragblend.errors import ConfigError

_LEAST_PASSAGES = 4
_NEWEST = 100


@dataclass(frozen=True, slots=True)
class Task:
    """facts: sentences of which each goes into another passage, at most one a passage. answers: any is right."""

    question: str
    answers: tuple[str, ...]
    facts: tuple[str, ...]


def needle(random: Random, passages: int) -> Task:
    """One fact among others of its form, one in every passage."""
    places = random.sample(PLACES, passages)
    codes = random.sample(range(10_000, 100_000), passages)
    facts = [f"The code of the vault in {place} is {code}." for place, code in zip(places, codes, strict=True)]
    return Task(f"What is the code of the vault in {places[0]}?", (str(codes[0]),), tuple(facts))


def tracing(random: Random, passages: int) -> Task:
    """A value is handed from variable to variable, passage by passage; another chain ends in another value."""
    names = [f"X{number}" for number in random.sample(range(100, 1000), 2 * (passages // 2))]
    value, other = random.sample(range(1000, 10_000), 2)
    asked, unasked = names[: passages // 2], names[passages // 2 :]
    facts = [*_chain(asked, value), *_chain(unasked, other)]
    return Task(f"What is the value of variable {asked[-1]}?", (str(value),), tuple(facts))


def two_hop(random: Random, passages: int) -> Task:
    """The first fact names whom the second one is about."""
    pairs = passages // 2
    people, towns = random.sample(PEOPLE, pairs), random.sample(PLACES, pairs)
    firms = random.sample(PRODUCTS, pairs)
    facts = [f"{person} is the head of the {firm} works." for person, firm in zip(people, firms, strict=True)]
    facts += [f"The {firm} works are in the town of {town}." for firm, town in zip(firms, towns, strict=True)]
    return Task(f"In which town are the works that {people[0]} is the head of?", (towns[0],), tuple(facts))


def ordering(random: Random, passages: int) -> Task:
    """Of three dated events in three passages, which was the first."""
    places = random.sample(PLACES, passages)
    years = random.sample(range(1700, 2000), passages)
    facts = [f"The bridge of {place} was opened in {year}." for place, year in zip(places, years, strict=True)]
    asked = places[:3]
    first = min(zip(years, asked, strict=False))[1]
    return Task(f"Which bridge was opened first: that of {asked[0]}, {asked[1]} or {asked[2]}?", (first,), tuple(facts))


def counting(random: Random, passages: int) -> Task:
    """How many passages report something."""
    places = random.sample(PLACES, passages)
    count = random.randint(2, passages - 1)
    facts = [f"The station in {place} reported a flood." for place in places[:count]]
    facts += [f"The station in {place} reported no flood." for place in places[count:]]
    answers = (NUMBERS[count], str(count)) if count < len(NUMBERS) else (str(count),)
    return Task("How many stations reported a flood?", answers, tuple(facts))


def versions(random: Random, passages: int) -> Task:
    """Passages contradict each other, and the newest of them counts."""
    product, other = random.sample(PRODUCTS, 2)
    about = passages - passages // 4
    numbers = [*random.sample(range(1, _NEWEST), about), *range(_NEWEST, _NEWEST + passages - about)]
    names = [product] * about + [other] * (passages - about)
    limits = random.sample(range(20, 400), passages)
    facts = [
        f"Version {number} of the manual says that the {name} carries at most {limit} kilograms."
        for number, limit, name in zip(numbers, limits, names, strict=True)
    ]
    newest = limits[numbers.index(max(numbers[:about]))]
    question = f"How many kilograms does the {product} carry according to the newest version of its manual?"
    return Task(question, (str(newest), f"{newest} kilograms"), tuple(facts))


KINDS: dict[str, Callable[[Random, int], Task]] = {
    "needle": needle,
    "tracing": tracing,
    "two-hop": two_hop,
    "ordering": ordering,
    "counting": counting,
    "versions": versions,
}


def make_examples(
    *, seed: int, count: int, kinds: Sequence[str] = tuple(KINDS), passages: int = 8, words: int = 120
) -> list[Example]:
    """``count`` questions of each kind over ``passages`` passages of about ``words`` words; one seed, one result.

    Raises ConfigError for an unknown kind and numbers outside their range.
    """
    require(count >= 1, f"count must be at least 1, got {count}")
    most = min(len(PLACES), 2 * len(PEOPLE), 2 * len(PRODUCTS))
    require(_LEAST_PASSAGES <= passages <= most, f"passages must be {_LEAST_PASSAGES} to {most}, got {passages}")
    require(words >= 1, f"words must be at least 1, got {words}")
    unknown = [kind for kind in kinds if kind not in KINDS]
    require(bool(kinds) and not unknown, f"unknown kind {', '.join(unknown)!r}: choose from {', '.join(KINDS)}")
    return [_example(kind, number, seed, passages, words) for kind in kinds for number in range(count)]


def write_examples(examples: Sequence[Example], path: Path) -> None:
    """One JSON object a line, as ``bench quality --data`` reads them. Raises ConfigError where it cannot be written."""
    try:
        with path.open("w", encoding="utf-8") as file:
            for example in examples:
                file.write(json.dumps(asdict(example), ensure_ascii=False) + "\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}; name a file that can be written with --out") from error


def _example(kind: str, number: int, seed: int, passages: int, words: int) -> Example:
    random = Random(f"{kind} {number} {seed}")
    task = KINDS[kind](random, passages)
    facts = [*task.facts, *[""] * (passages - len(task.facts))]
    random.shuffle(facts)
    made = tuple(Passage(f"Report {index + 1}", _around(fact, random, words)) for index, fact in enumerate(facts))
    return Example(f"{kind}-{number}", task.question, task.answers, made)


def _around(fact: str, random: Random, words: int) -> str:
    """The fact somewhere between sentences that have nothing to do with it."""
    sentences: list[str] = []
    while sum(len(sentence.split()) for sentence in sentences) < words:
        sentences.append(filler(random))
    if fact:
        sentences.insert(random.randint(0, len(sentences)), fact)
    return " ".join(sentences)


def _chain(names: Sequence[str], value: int) -> list[str]:
    first = f"The variable {names[0]} has the value {value}."
    return [first, *(f"The variable {name} has the value of {names[at]}." for at, name in enumerate(names[1:]))]
