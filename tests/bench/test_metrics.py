"""F1, exact match and intervals on cases worked out by hand."""

from __future__ import annotations

import pytest

from ragblend.bench.metrics import bootstrap_mean, contains_answer, exact_match, f1, normalised_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The  Eiffel-Tower, in Paris!", ["eiffeltower", "in", "paris"]),
        ("a cat and an owl", ["cat", "and", "owl"]),
        ("$5 million", ["5", "million"]),
        ("«Петроград»", ["петроград"]),
        ("北京，1990年", ["北", "京", "1990", "年"]),
        ("１２月", ["12", "月"]),
        ("...", []),
    ],
)
def test_normalised_words(text: str, words: list[str]) -> None:
    assert normalised_words(text) == words


@pytest.mark.parametrize(
    ("answer", "right", "expected"),
    [
        ("Exeter College", ["Exeter College"], 1.0),
        ("the exeter college.", ["Exeter College"], 1.0),
        # two of the answer's five words and all two of the right ones: 2 * 2 / (5 + 2)
        ("He studied at Exeter College", ["Exeter College"], 4 / 7),
        ("Oxford", ["Exeter College"], 0.0),
        ("Exeter", ["Oxford", "Exeter College"], 2 / 3),
        # a repeated word counts as often as it stands in both
        ("no no no", ["no no"], 2 * 2 / 5),
        ("", ["Exeter College"], 0.0),
        ("the", ["a"], 1.0),
        # characters: two of three against two
        ("北京市", ["北京"], 2 * 2 / 5),
    ],
)
def test_f1(answer: str, right: list[str], expected: float) -> None:
    assert f1(answer, right) == pytest.approx(expected)


def test_exact_match_takes_any_right_answer() -> None:
    assert exact_match("The Nest.", ["blade", "nest"]) == 1.0
    assert exact_match("The nest is", ["blade", "nest"]) == 0.0


def test_the_interval_holds_the_mean_and_narrows_with_more_values() -> None:
    few, many = bootstrap_mean([0.0, 1.0] * 10), bootstrap_mean([0.0, 1.0] * 1000)
    assert few.mean == many.mean == 0.5
    assert few.low < many.low < 0.5 < many.high < few.high
    # 1.96 standard errors of a fair coin thrown 2,000 times
    assert many.high - many.mean == pytest.approx(1.96 * 0.5 / 2000**0.5, rel=0.1)


def test_the_interval_of_equal_values_is_a_point_and_runs_repeat() -> None:
    assert bootstrap_mean([0.25]) == bootstrap_mean([0.25, 0.25])
    assert bootstrap_mean([0.25]).low == bootstrap_mean([0.25]).high == 0.25
    assert bootstrap_mean([1.0, 2.0, 5.0]) == bootstrap_mean([1.0, 2.0, 5.0])


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("It lasts for Two years.", True),
        ("It lasts for the twenty-two years.", False),
        ("Two whole years", False),
        ("24 months, that is", True),
        ("", False),
    ],
)
def test_an_answer_contains_a_right_one_word_after_word(answer, right):
    assert contains_answer(answer, ["two years", "24 months"]) is right
