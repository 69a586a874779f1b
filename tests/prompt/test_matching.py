"""Known texts inside a prompt, against a search that tries everything everywhere."""

from __future__ import annotations

import random
from itertools import count, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragblend.prompt.boundary import boundaries
from ragblend.prompt.matching import BLOCK, HashTable, TextIndex

WARRANTY = "The warranty of the robot lasts two years."
BATTERY = "The battery of the robot is charged in ninety minutes."


def index_of(texts: dict[int, str]) -> TextIndex:
    index = TextIndex()
    index.add(texts.items())
    return index


def found(known: dict[int, str] | list[str], prompt: str) -> list[str]:
    """The matches' texts in order."""
    texts = known if isinstance(known, dict) else dict(enumerate(known))
    matches = index_of(texts).find(prompt, texts.get)
    assert all(prompt[match.start : match.end] == texts[match.owner] for match in matches)
    assert all(one.end <= other.start for one, other in pairwise(matches))
    return [prompt[match.start : match.end] for match in matches]


def tried_everywhere(known: dict[int, str], prompt: str) -> list[tuple[int, int]]:
    """The definition: take the longest known text, the leftmost of equally long ones, then go on left and right."""
    allowed = boundaries(prompt)

    def within(start: int, end: int) -> list[tuple[int, int]]:
        fits = [
            (-len(text), place)
            for text in known.values()
            for place in range(start, end - len(text) + 1)
            if len(text) >= BLOCK and prompt.startswith(text, place) and allowed[place] and allowed[place + len(text)]
        ]
        if not fits:
            return []
        length, place = min(fits)
        return [*within(start, place), (place, place - length), *within(place - length, end)]

    return within(0, len(prompt))


@pytest.mark.parametrize("order", [(3, 5, 9), (9, 5, 3), (5, 9, 3)])
@pytest.mark.parametrize("rest", ["", " It is long."])
def test_of_equal_texts_it_is_the_one_under_the_smallest_number(order, rest):
    """In whatever order they came, all at once or one by one, and below a longer text that does not fit."""
    longer = {1: f"{WARRANTY} And of the mower, which is another text, it lasts three years."}
    one_by_one, at_once = index_of(longer), index_of({**longer, **dict.fromkeys(order, WARRANTY)})
    for owner in order:
        one_by_one.add([(owner, WARRANTY)])
    for index in (one_by_one, at_once):
        for gone in (3, 5):
            assert [match.owner for match in index.find(f"{WARRANTY}{rest}", lambda _: WARRANTY)] == [gone]
            index.remove(np.array([gone]))
        assert [match.owner for match in index.find(f"{WARRANTY}{rest}", lambda _: WARRANTY)] == [9]


# Few characters, so that texts overlap, repeat and begin alike; letters, so that words are cut.
letters = st.sampled_from(["-", "=- ", "ab. ", "-a \n", "e\u0301x -", "年- 保a"])


@st.composite
def texts_and_prompt(draw: st.DrawFn) -> tuple[dict[int, str], str]:
    alphabet = draw(letters)
    known: list[str] = []
    for _ in range(draw(st.integers(1, 8))):
        beginning = draw(st.sampled_from(known)) if known and draw(st.booleans()) else ""
        beginning = beginning[: draw(st.integers(0, len(beginning)))]
        known.append(beginning + draw(st.text(alphabet, min_size=BLOCK - 2, max_size=100)))
    pieces = [
        draw(st.sampled_from(known))[: draw(st.sampled_from([None, 40]))] + draw(st.sampled_from(["", "\n", "x", "- "]))
        for _ in range(draw(st.integers(0, 6)))
    ]
    return dict(enumerate(known)), "".join(pieces)


@settings(max_examples=300, deadline=None)
@given(texts_and_prompt())
def test_finds_what_trying_everything_finds(example):
    known, prompt = example
    matches = index_of(known).find(prompt, known.get)
    assert [(match.start, match.end) for match in matches] == tried_everywhere(known, prompt)


class TestFinds:
    def test_texts_in_any_order_and_more_than_once(self):
        prompt = f"Documents:\n\n{BATTERY}\n\n{WARRANTY}\n\n{BATTERY}\n\nQuestion: how long?"
        assert found([WARRANTY, BATTERY], prompt) == [BATTERY, WARRANTY, BATTERY]

    def test_the_whole_prompt(self):
        assert found([WARRANTY], WARRANTY) == [WARRANTY]

    def test_the_longest_where_one_contains_the_other(self):
        both = f"{WARRANTY} {BATTERY}"
        assert found([WARRANTY, both, BATTERY], f"{BATTERY} {both}") == [BATTERY, both]

    def test_the_longest_where_another_begins_before_it(self):
        """A paragraph learned with the words before it must not hide a whole document."""
        learned, document = f"Context:\n\n{WARRANTY}", f"{WARRANTY}\n\n{BATTERY}"
        assert found([learned, document], f"{learned}\n\n{BATTERY}") == [document]

    def test_a_shorter_one_where_the_longer_does_not_fit(self):
        longer = f"{WARRANTY} {BATTERY}"
        longest = f"{BATTERY} It is stored in a dry place over the winter."
        assert found([WARRANTY, longer, longest], f"{WARRANTY} {longest}") == [WARRANTY, longest]

    def test_texts_of_exactly_a_block_and_its_multiples(self):
        for length in (BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 4 * BLOCK):
            text = "".join(random.Random(length).choices("abcdefg ", k=length - 2)) + "x."
            assert found([f"y{text}"[1:]], f" {text} ") == [text]

    def test_chinese(self):
        text = "机器人的保修期为两年，涵盖所有部件。电池在充电站充电需要九十分钟。刀片每年春天更换。"
        assert found([text], f"文件：{text}问题：保修期多长？") == [text]


class TestDoesNotFind:
    @pytest.mark.parametrize(
        "prompt",
        [
            WARRANTY.replace("two", "three"),
            WARRANTY[:-1],
            WARRANTY.replace(" ", "  ", 1),
            f"{WARRANTY[:-1]}, and longer",
            WARRANTY.upper(),
            "",
        ],
    )
    def test_text_that_merely_begins_like_it(self, prompt):
        assert found([WARRANTY], prompt) == []

    def test_a_part_of_a_word(self):
        known = WARRANTY.removesuffix(".")
        assert found([known], f"{known}!") == [known]
        assert found([known], f"{known}ago") == []
        assert found([known], f"Also{known}") == []

    def test_another_normal_form(self):
        composed, decomposed = "Die Garantie erstreckt sich über zwei Jahre.", "u\u0308"
        assert found([composed], composed.replace("ü", decomposed)) == []
        assert found([composed.replace("ü", decomposed)], composed) == []

    def test_short_texts(self):
        assert found(["short"], "short") == []
        assert found(["x" * (BLOCK - 1)], "x" * (BLOCK - 1)) == []

    def test_what_was_removed(self):
        index = index_of({1: WARRANTY, 2: BATTERY, 3: WARRANTY})
        index.remove(np.array([2, 3]))
        texts = {1: WARRANTY}
        assert [match.owner for match in index.find(f"{BATTERY} {WARRANTY}", texts.get)] == [1]

    def test_what_is_gone_when_it_is_read(self):
        shorter = f"{WARRANTY} {BATTERY}"[:-1]
        index = index_of({1: shorter, 2: f"{shorter}."})
        [match] = index.find(f"{shorter}.", {1: shorter}.get)
        assert match.owner == 1


class Counted:
    """Counts what a search looks up, and how often it reads a text."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looked_up = self.read = 0
        place = HashTable.place

        def counting(table: HashTable, hashes: np.ndarray) -> np.ndarray:
            self.looked_up += hashes.size
            return place(table, hashes)

        monkeypatch.setattr(HashTable, "place", counting)

    def search(self, texts: dict[int, str], prompt: str) -> SimpleNamespace:
        def read(owner: int) -> str:
            self.read += 1
            return texts[owner]

        index = index_of(texts)
        self.looked_up = self.read = 0
        matches = index.find(prompt, read)
        return SimpleNamespace(matches=len(matches), looked_up=self.looked_up, read=self.read)


@pytest.fixture
def counted(monkeypatch) -> Counted:
    return Counted(monkeypatch)


class TestWork:
    """Grows with the prompt, and with nothing else."""

    HEADER = "Robot handbook, edition of the year. All rights reserved. "

    def test_does_not_grow_with_the_number_of_texts_that_begin_alike(self, counted):
        letters = random.Random(0)
        numbers = count()

        def texts(how_many: int) -> dict[int, str]:
            bodies = ("".join(letters.choices("abcdef ,.", k=letters.randrange(50, 1500))) for _ in range(how_many))
            return {number: f"{self.HEADER}{body}{next(numbers)}." for number, body in enumerate(bodies)}

        few, many = texts(10), texts(5000)
        prompts = {len(known): "\n\n".join(list(known.values())[:5]) for known in (few, many)}
        work = {len(known): counted.search(known, prompts[len(known)]) for known in (few, many)}
        assert [each.matches for each in work.values()] == [5, 5]
        assert [each.read for each in work.values()] == [5, 5]
        per_character = [each.looked_up / len(prompts[number]) for number, each in work.items()]
        assert max(per_character) < 3

    def test_does_not_grow_with_texts_that_are_beginnings_of_each_other(self, counted):
        longest = "".join(random.Random(0).choices("ab ", k=4000)) + "."
        beginnings = {length: longest[:length] for length in range(BLOCK, 4000)}
        few = {length: longest[:length] for length in (BLOCK, 3999)}
        prompt = f"{longest[:3999]}x"
        one, other = counted.search(beginnings, prompt), counted.search(few, prompt)
        assert other.looked_up <= one.looked_up + BLOCK < 3 * len(prompt)

    @pytest.mark.parametrize("length", [2000, 20_000])
    def test_of_a_prompt_of_one_character(self, counted, length):
        every = {size: "-" * size for size in range(BLOCK, 3000)}
        work = counted.search(every, "-" * length)
        assert work.matches == work.read == -(-length // 2999)
        assert work.looked_up < 60 * length

    def test_of_a_prompt_that_begins_a_long_text_everywhere(self, counted):
        work = counted.search({1: "-" * 5000 + "x"}, "-" * 20_000)
        assert work.matches == work.read == 0
        assert work.looked_up < 60 * 20_000

    def test_no_text_is_read_without_need(self, counted):
        known = {number: f"{self.HEADER}{number:08}" for number in range(1000)}
        assert counted.search(known, f"{self.HEADER}something else " * 50).read == 0
