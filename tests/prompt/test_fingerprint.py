"""Hashes of stretches: equal for equal text wherever it stands, different for different text."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ragblend.prompt.fingerprint import Fingerprints


def whole(fingerprints: Fingerprints, text: str) -> int:
    [value] = fingerprints.of(text).span(np.array([0]), np.array([len(text)])).tolist()
    return value


@given(st.text(max_size=50), st.text(max_size=50), st.text(max_size=50))
def test_a_stretch_has_the_hash_of_its_text(before, text, after):
    fingerprints = Fingerprints()
    rolling = fingerprints.of(before + text + after)
    [inside] = rolling.span(np.array([len(before)]), np.array([len(text)])).tolist()
    assert inside == whole(fingerprints, text)


@given(st.text(max_size=20), st.text(max_size=20))
def test_other_text_has_another_hash(one, other):
    fingerprints = Fingerprints()
    assert (whole(fingerprints, one) == whole(fingerprints, other)) == (one == other)


def test_text_that_defeats_hashes_modulo_a_power_of_two():
    """The words of Thue and Morse collide there in every base."""
    one, other = "a", "b"
    for _ in range(12):
        one, other = one + other, other + one
    fingerprints = Fingerprints()
    assert whole(fingerprints, one) != whole(fingerprints, other)


def test_long_text_at_its_far_end():
    fingerprints = Fingerprints()
    text = "\U0010ffff" * 100_000
    rolling = fingerprints.of(text)
    hashes = rolling.span(np.array([0, 50_000, 99_968]), np.array([32, 32, 32]))
    assert set(hashes.tolist()) == {whole(fingerprints, "\U0010ffff" * 32)}


def test_bases_are_secret():
    assert whole(Fingerprints(), "text") != whole(Fingerprints(), "text")
