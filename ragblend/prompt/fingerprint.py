"""Rolling hashes of text: the hash of any stretch in constant time, after one pass over the whole.

The method of Karp and Rabin (1987) in two random bases modulo 2^31 - 1, all positions at once. The
bases are secret, so that nobody can write texts that collide on purpose; and equal hashes are never
taken for equal texts.
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]

PRIME = (1 << 31) - 1


class Fingerprints:
    """Two random bases. Hashes of the same ``Fingerprints`` can be compared, whatever text they are of."""

    def __init__(self) -> None:
        self._bases = [secrets.randbelow(PRIME - 2) + 2 for _ in range(2)]

    def of(self, text: str) -> Rolling:
        codes = code_points(text)
        return Rolling([_Sums(codes, base) for base in self._bases])


class Rolling:
    """The hashes of one text's stretches."""

    def __init__(self, sums: list[_Sums]) -> None:
        self._sums = sums

    def span(self, starts: Integers, lengths: Integers) -> Integers:
        """Hashes (62 bits) of the stretches of ``lengths`` code points from ``starts`` on, elementwise."""
        high, low = (sums.span(starts, starts + lengths) for sums in self._sums)
        return (high << 31) | low


class _Sums:
    """Sums of code[j] * base^j over the first i code points, for each i."""

    def __init__(self, codes: Integers, base: int) -> None:
        powers = _powers(base, len(codes))
        self._sums = np.zeros(len(codes) + 1, np.int64)
        # A term is below 2^31, so 2^32 of them can be added up before they are reduced.
        np.cumsum((codes + 1) * powers[:-1] % PRIME, out=self._sums[1:])
        self._sums %= PRIME
        self._shifts = _powers(pow(base, -1, PRIME), len(codes))

    def span(self, starts: Integers, ends: Integers) -> Integers:
        return (self._sums[ends] - self._sums[starts]) % PRIME * self._shifts[starts] % PRIME


def code_points(text: str) -> Integers:
    """The text's code points, lone surrogates included."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.int64)


def _powers(base: int, count: int) -> Integers:
    """base^0 .. base^count modulo PRIME."""
    powers = np.ones(count + 1, np.int64)
    known = 1
    while known <= count:
        step = pow(base, known, PRIME)
        following = powers[known : 2 * known]
        following[:] = powers[: len(following)] * step % PRIME
        known *= 2
    return powers
