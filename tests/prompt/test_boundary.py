"""Where a known text may begin or end inside a prompt."""

from __future__ import annotations

import unicodedata

import pytest

from ragblend.prompt.boundary import boundaries


def places(text: str) -> list[int]:
    return [place for place, allowed in enumerate(boundaries(text).tolist()) if allowed]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [0]),
        ("ab cd", [0, 2, 3, 5]),
        ("a-b", [0, 1, 2, 3]),
        ("x1.", [0, 2, 3]),
        ("--", [0, 1, 2]),
        ("保証は二年", [0, 1, 2, 3, 4, 5]),  # words without space between them
        ("年ab", [0, 1, 3]),
        ("שלום עולם", [0, 4, 5, 9]),
    ],
)
def test_not_inside_words(text, expected):
    assert places(text) == expected


def test_not_between_a_letter_and_its_marks():
    text = unicodedata.normalize("NFD", "é!")
    assert len(text) == 3
    assert places(text) == [0, 2, 3]


def test_not_inside_joined_emoji():
    family = "👨\u200d👩\u200d👧"
    assert places(f"{family}!") == [0, len(family), len(family) + 1]
    heart = "❤\ufe0f"
    assert places(f"{heart}{heart}") == [0, 2, 4]


def test_a_mark_at_the_very_beginning_belongs_to_something_that_is_not_there():
    assert places("\u0301a") == [1, 2]


def test_lone_surrogates_are_characters_like_others():
    assert places("\ud800 \ud800") == [0, 1, 2, 3]
