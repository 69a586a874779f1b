"""A run: consecutive blocks of one chain that a request computed, kept and dropped together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ragblend.kernels.layout import LayerKV
from ragblend.kernels.quantise import rows_of
from ragblend.prefix.chain import Blend
from ragblend.store.base import KVReader, WrappedReader
from ragblend.store.eviction import Candidate
from ragblend.store.key import digest_fields, token_bytes

# What a run is worth next to a chunk: a prompt is seldom asked again, while a chunk stands in many.
_WEIGHT = 1 / 8
# Blocks of one run at most: little enough to evict finely, enough that a long prefix is a few files.
RUN_BLOCKS = 32


@dataclass(frozen=True, slots=True)
class Jump:
    """Where a blended request's chain left the one it began on: behind block ``parent``, at its ``seed``.

    length: of its prompt. tail: the last ids of that prompt, by which most other prompts are told apart.
    """

    parent: bytes
    seed: bytes
    length: int
    tail: bytes
    blend: Blend


@dataclass(eq=False, slots=True)
class Run:
    """start: position of its first token. parent: the hash before it. hashes: one a block.

    jump: of the run that a blended request's chain begins with. built_on: keys of the chunks that the
    prompt had up to its end. turns: how many requests its approximate KV has gone through, 0 for exact KV.
    ttl_s: how long it outlives its last use, None for as long as there is room; used_at: seconds since
    the epoch. memory_bytes: of its rows in memory, 0 if they are not there. disk_bytes: of its file, which is
    there once it is ``on_disk``; 0 if it has none.
    pins: requests that are using it. reads, read_tokens: how often it was reused, and tokens that were not
    computed thanks to it.
    """

    start: int
    token_ids: tuple[int, ...]
    parent: bytes
    hashes: tuple[bytes, ...]
    jump: Jump | None
    built_on: frozenset[str]
    turns: int
    used_at: float
    ttl_s: float | None = None
    memory_bytes: int = 0
    disk_bytes: int = 0
    on_disk: bool = False
    pins: int = 0
    reads: int = 0
    read_tokens: int = 0
    key: str = field(init=False)

    def __post_init__(self) -> None:
        place = (str(self.start), str(self.turns), self.parent, b"".join(self.hashes))
        self.key = digest_fields("prefix run", *place, token_bytes(self.token_ids))

    @property
    def stop(self) -> int:
        return self.start + len(self.token_ids)

    @property
    def block_tokens(self) -> int:
        return len(self.token_ids) // len(self.hashes)

    @property
    def exact(self) -> bool:
        return self.turns == 0

    def expires_at(self) -> float:
        """Seconds since the epoch; infinity without a time to live."""
        return float("inf") if self.ttl_s is None else self.used_at + self.ttl_s

    def worth(self, nbytes: int, now: float) -> Candidate:
        """What evicting ``nbytes`` of it means."""
        return worth_of(self.key, nbytes, self.used_at, self.ttl_s, self.start, now)


def worth_of(key: str, nbytes: int, used_at: float | None, ttl_s: float | None, start: int, now: float) -> Candidate:
    """A run as one that may be evicted. used_at: None for a file that belongs to no run."""
    if used_at is None:
        return Candidate(key, nbytes, 0.0, math.inf)
    kept = ttl_s is not None and used_at + ttl_s > now
    return Candidate(key, nbytes, 0.0, max(0.0, now - used_at), kept, _WEIGHT, start)


@dataclass(frozen=True, slots=True)
class Piece:
    """Blocks ``first`` to ``last - 1`` of a run, as part of a path."""

    run: Run
    first: int
    last: int

    @property
    def start(self) -> int:
        return self.run.start + self.first * self.run.block_tokens

    @property
    def tokens(self) -> int:
        return (self.last - self.first) * self.run.block_tokens

    @property
    def whole(self) -> bool:
        return self.first == 0 and self.last == len(self.run.hashes)


@dataclass(frozen=True, slots=True)
class Path:
    """Kept blocks from a prompt's beginning on. end: the hash after them. root: the hash before them."""

    pieces: tuple[Piece, ...]
    end: bytes
    root: bytes

    @property
    def tokens(self) -> int:
        return sum(piece.tokens for piece in self.pieces)

    @property
    def turns(self) -> int:
        return self.pieces[-1].run.turns if self.pieces else 0

    def exact(self) -> Path:
        """Its exact part."""
        return self.first(sum(piece.run.exact for piece in self.pieces))

    def first(self, count: int) -> Path:
        """Its first ``count`` pieces."""
        return path_of(self.pieces[:count], self.root)

    def __iter__(self) -> Iterator[Piece]:
        return iter(self.pieces)


def path_of(pieces: Sequence[Piece], root: bytes) -> Path:
    """The path of ``pieces``, which begins behind the hash ``root``."""
    return Path(tuple(pieces), pieces[-1].run.hashes[pieces[-1].last - 1] if pieces else root, root)


class PartReader(WrappedReader):
    """Some rows of another reader's entry."""

    def __init__(self, reader: KVReader, first: int, tokens: int) -> None:
        super().__init__(reader)
        self._rows = slice(first, first + tokens)

    @property
    def tokens(self) -> int:
        return self._rows.stop - self._rows.start

    def layer(self, index: int) -> LayerKV:
        return rows_of(super().layer(index), self._rows)
