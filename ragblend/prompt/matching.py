"""Finding known texts inside a prompt: the longest first, in time linear in the prompt.

Each known text leaves the hash of its whole, and the hashes of its first 32, 64, 96, ... characters.
At a place in a prompt a binary search tells how far some known text goes along with it; which ones
end on the way is looked up by their length. So the work at a place depends neither on how many
texts are known nor on how many begin alike. Hashes only propose: a match is confirmed by its text.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from ragblend.prompt.boundary import Flags, boundaries
from ragblend.prompt.fingerprint import Fingerprints, Integers, Rolling

# The shortest text that is found, and the step between the lengths at which beginnings are hashed.
BLOCK = 32
_NOTHING = np.empty(0, np.int64)
# Places looked at together, which bounds the memory that the search takes.
_PLACES = 4096
# Known texts are hashed together up to about this many characters.
_BATCH_CHARACTERS = 1 << 19


@dataclass(frozen=True, slots=True)
class Match:
    """``text[start:end]`` of the prompt is the known text under ``owner``."""

    start: int
    end: int
    owner: int


@dataclass(frozen=True)
class HashTable:
    """Sorted hashes, each with the text that it is of. Immutable."""

    hashes: Integers
    owners: Integers

    def place(self, hashes: Integers) -> Integers:
        """Where each of ``hashes`` stands in the table, -1 for one that does not."""
        if not len(self.hashes):
            return np.full(hashes.shape, -1)
        places = np.searchsorted(self.hashes, hashes)
        places[places == len(self.hashes)] = 0
        return np.where(self.hashes[places] == hashes, places, -1)

    def least_owner(self, place: int) -> int:
        """The smallest number of the texts whose hash is the one at ``place``, where the first of them stands."""
        end = np.searchsorted(self.hashes, self.hashes[place], side="right")
        return int(self.owners[place:end].min())

    def with_added(self, hashes: Integers, owners: Integers) -> HashTable:
        order = np.argsort(hashes, kind="stable")
        places = np.searchsorted(self.hashes, hashes[order])
        return HashTable(np.insert(self.hashes, places, hashes[order]), np.insert(self.owners, places, owners[order]))

    def without(self, owners: Integers) -> HashTable:
        kept = ~np.isin(self.owners, owners)
        return HashTable(self.hashes[kept], self.owners[kept])


class TextIndex:
    """Known texts, each under a number of its own; what a text says is read only to confirm a match.

    Texts of fewer than ``BLOCK`` characters are never found. Searching is safe while another thread
    changes the index; changes must come one at a time.
    """

    def __init__(self) -> None:
        self._fingerprints = Fingerprints()
        empty = HashTable(_NOTHING, _NOTHING)
        self._tables = (empty, empty)

    def add(self, texts: Iterable[tuple[int, str]]) -> None:
        """Add texts under numbers that are not in the index. Memory holds the text of about one batch."""
        hashed = [self._hashed(batch) for batch in _batches(texts)]
        if hashed:
            columns = [np.concatenate(column) for column in zip(*hashed, strict=True)]
            beginnings, wholes = self._tables
            self._tables = (beginnings.with_added(*columns[:2]), wholes.with_added(*columns[2:]))

    def _hashed(self, texts: Sequence[tuple[int, str]]) -> tuple[Integers, ...]:
        """Hashes of beginnings with their owners, and of wholes with theirs."""
        owners = np.array([owner for owner, _ in texts], np.int64)
        lengths = np.array([len(text) for _, text in texts], np.int64)
        starts = np.cumsum(lengths) - lengths
        rolling = self._fingerprints.of("".join(text for _, text in texts))
        blocks = lengths // BLOCK
        which = np.repeat(np.arange(len(texts)), blocks)
        number = np.arange(len(which)) - np.repeat(np.cumsum(blocks) - blocks, blocks) + 1
        return (
            rolling.span(starts[which], number * BLOCK),
            owners[which],
            rolling.span(starts[blocks > 0], lengths[blocks > 0]),
            owners[blocks > 0],
        )

    def remove(self, owners: Integers) -> None:
        beginnings, wholes = self._tables
        self._tables = (beginnings.without(owners), wholes.without(owners))

    def find(self, text: str, read: Callable[[int], str | None]) -> list[Match]:
        """Known texts in ``text``, in order and not overlapping.

        Of all places where a known text stands, the longest is taken, the leftmost of equally long
        ones, and so on in what is left. None begins or ends inside a word. Of equal texts it is the one
        under the smallest number. ``read`` gives the text under a number, None if it is known no more.
        """
        if len(text) < BLOCK or not len(self._tables[1].hashes):
            return []
        search = _Search(text, self._fingerprints.of(text), *self._tables)
        candidates = search.longest(np.flatnonzero(search.borders[:-1]), len(text))
        heapify(candidates)
        taken = _Taken(len(text))
        while candidates:
            length = -candidates[0][0]
            blocked: dict[int, int] = {}
            while candidates and -candidates[0][0] == length:
                _, start, owner = heappop(candidates)
                room = taken.room(start)
                if room < length:
                    blocked[start] = room
                elif read(owner) == text[start : start + length]:
                    taken.take(Match(start, start + length, owner))
                else:
                    blocked[start] = length - 1
            # Where a longer one stands in the way, or a hash was wrong, a shorter one may still fit.
            for candidate in search.longest(*_as_arrays(blocked)):
                heappush(candidates, candidate)
        return taken.matches


class _Search:
    """One prompt against the tables of one moment."""

    def __init__(self, text: str, rolling: Rolling, beginnings: HashTable, wholes: HashTable) -> None:
        self.borders: Flags = boundaries(text)
        self._length = len(text)
        self._rolling = rolling
        self._beginnings = beginnings
        self._wholes = wholes
        self._shorter: dict[int, tuple[int, int]] = {}

    def longest(self, starts: Integers, limits: Integers | int) -> list[tuple[int, int, int]]:
        """(-length, start, owner) of the longest known text of at most ``limits`` from each start, if any."""
        limits = np.minimum(limits, self._length - starts)
        found = []
        for first in range(0, len(starts), _PLACES):
            part = slice(first, first + _PLACES)
            found += self._longest(starts[part], limits[part])
        return found

    def _longest(self, starts: Integers, limits: Integers) -> list[tuple[int, int, int]]:
        far_enough = limits >= BLOCK
        starts, limits = starts[far_enough], limits[far_enough]
        known = self._goes_along(starts, np.ones_like(starts))
        starts, limits = starts[known], limits[known]
        blocks = self._blocks(starts, limits)
        lengths, places = self._ending(starts, blocks, limits)
        found = []
        for start, count, length, place in zip(*(a.tolist() for a in (starts, blocks, lengths, places)), strict=True):
            if not length:
                length, place = self._below(start, count)
            if length:
                found.append((-length, start, self._wholes.least_owner(place)))
        return found

    def _goes_along(self, starts: Integers, blocks: Integers) -> Flags:
        """Whether some known text begins with the ``blocks`` blocks from each start."""
        return self._beginnings.place(self._rolling.span(starts, blocks * BLOCK)) >= 0

    def _blocks(self, starts: Integers, limits: Integers) -> Integers:
        """For how many blocks, at least one, some known text goes along. A text that does for n does for n - 1."""
        low, high = np.ones_like(starts), limits // BLOCK
        while (low < high).any():
            middle = (low + high + 1) // 2
            known = self._goes_along(starts, middle)
            low, high = np.where(known, middle, low), np.where(known, high, middle - 1)
        return low

    def _ending(self, starts: Integers, blocks: Integers, limits: Integers) -> tuple[Integers, Integers]:
        """Length of the longest known text of ``blocks`` whole blocks and a rest, and its place; 0 for none."""
        lengths = blocks[:, None] * BLOCK + np.arange(BLOCK)
        allowed = lengths <= limits[:, None]
        lengths = np.where(allowed, lengths, BLOCK)
        allowed &= self.borders[starts[:, None] + lengths]
        places = np.full(lengths.shape, -1)
        rows, columns = np.nonzero(allowed)
        places[rows, columns] = self._wholes.place(self._rolling.span(starts[rows], lengths[rows, columns]))
        ends = np.where(places >= 0, lengths, 0)
        best = (np.arange(len(starts)), ends.argmax(axis=1))
        return ends[best], places[best]

    def _below(self, start: int, blocks: int) -> tuple[int, int]:
        """Length and place of the longest known text that ends before the last of ``blocks`` known blocks does.

        What it is follows from those blocks alone, so it is looked up once for all places that have them.
        """
        waiting = []
        found = (0, 0)
        for count in range(blocks, 1, -1):
            [key] = self._rolling.span(np.array([start]), np.array([count * BLOCK])).tolist()
            if key in self._shorter:
                found = self._shorter[key]
                break
            waiting.append(key)
            at, whole = np.array([start]), np.array([count - 1])
            lengths, places = self._ending(at, whole, np.array([count * BLOCK - 1]))
            if lengths[0]:
                found = (int(lengths[0]), int(places[0]))
                break
        self._shorter.update(dict.fromkeys(waiting, found))
        return found


class _Taken:
    """The matches so far, in order."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._starts: list[int] = []
        self._matches: dict[int, Match] = {}

    def room(self, start: int) -> int:
        """How many characters are free from ``start`` on."""
        next_one = bisect_right(self._starts, start)
        if next_one and self._matches[self._starts[next_one - 1]].end > start:
            return 0
        return (self._starts[next_one] if next_one < len(self._starts) else self._length) - start

    def take(self, match: Match) -> None:
        insort(self._starts, match.start)
        self._matches[match.start] = match

    @property
    def matches(self) -> list[Match]:
        return [self._matches[start] for start in self._starts]


def _batches(texts: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    batch: list[tuple[int, str]] = []
    characters = 0
    for owner, text in texts:
        batch.append((owner, text))
        characters += len(text)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _as_arrays(limits: dict[int, int]) -> tuple[Integers, Integers]:
    return np.fromiter(limits, np.int64, len(limits)), np.fromiter(limits.values(), np.int64, len(limits))
