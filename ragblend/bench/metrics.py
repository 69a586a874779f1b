"""Scores of answers against the right ones, and how sure their means are."""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_ARTICLES = {"a", "an", "the"}
# Chinese and Japanese write no spaces, so each of their characters counts as a word.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(f"[{_UNSPACED}]|[^\\s{_UNSPACED}]+")
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean with its 95% confidence interval, ``low`` to ``high``."""

    mean: float
    low: float
    high: float


def normalised_words(text: str) -> list[str]:
    """Words as SQuAD compares them: lower case, without punctuation and the articles a, an, the."""
    composed = unicodedata.normalize("NFKC", text).lower()
    kept = "".join(letter for letter in composed if not _is_punctuation(letter))
    return [word for word in _WORD.findall(kept) if word not in _ARTICLES]


def f1(answer: str, right: Sequence[str]) -> float:
    """SQuAD's F1 of the words of ``answer``: the best over the right answers."""
    return max(_f1(normalised_words(answer), normalised_words(gold)) for gold in right)


def exact_match(answer: str, right: Sequence[str]) -> float:
    """1 where the normalised answer is one of the right ones, else 0."""
    return float(any(normalised_words(answer) == normalised_words(gold) for gold in right))


def contains_answer(answer: str, right: Sequence[str]) -> bool:
    """Whether ``answer`` has the normalised words of a right one in it, one after the other."""
    said = f" {' '.join(normalised_words(answer))} "
    return any(f" {' '.join(normalised_words(gold))} " in said for gold in right)


def bootstrap_mean(values: Sequence[float]) -> Mean:
    """The mean and its percentile bootstrap interval; for a paired difference give the differences.

    Deterministic: the resampling is seeded.
    """
    sample = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(0).integers(len(sample), size=(_RESAMPLES, len(sample)))
    low, high = np.percentile(sample[drawn].mean(axis=1), [2.5, 97.5])
    return Mean(float(sample.mean()), float(low), float(high))


def _is_punctuation(letter: str) -> bool:
    return letter in string.punctuation or unicodedata.category(letter).startswith("P")


def _f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    shared = sum((Counter(answer) & Counter(gold)).values())
    return 2 * shared / (len(answer) + len(gold))
