"""Prompts as lists of segments, which are tokenised each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal

from ragblend.config import require
from ragblend.errors import ConfigError
from ragblend.results import Source

MOST_CACHE_POINTS = 4

SegmentKind = Literal["prefix", "chunk", "glue", "suffix"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of prompt tokens. ``key`` names a chunk's entry in the store, ``source`` its origin.

    entry_ids: all ids of the entry, where the chunk is only its beginning; None where it is the whole.
    in_context: whether it may have been prefilled behind something else than all of the anchor.
    """

    kind: SegmentKind
    token_ids: tuple[int, ...]
    key: str | None = None
    source: Source | None = None
    entry_ids: tuple[int, ...] | None = None
    in_context: bool = False

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class CacheBreak:
    """A prompt's first ``tokens`` tokens are to be kept for ``ttl_s`` seconds after their last use.

    named: because they are a named cache.
    """

    tokens: int
    ttl_s: float
    named: bool = False


@dataclass(frozen=True)
class Prompt:
    """Segments in order. The last one must be a non-empty suffix: its last row gives the first token.

    cache_points: at most four beside that of a named cache. Raises ConfigError.
    """

    segments: tuple[Segment, ...]
    cache_points: tuple[CacheBreak, ...] = ()

    def __post_init__(self) -> None:
        count = sum(not point.named for point in self.cache_points)
        require(count <= MOST_CACHE_POINTS, f"a prompt has at most {MOST_CACHE_POINTS} cache points, got {count}")
        if not self.segments or self.segments[-1].kind != "suffix" or not self.segments[-1].token_ids:
            raise ConfigError("a prompt must end with a suffix of at least one token")

    def __len__(self) -> int:
        return sum(len(segment) for segment in self.segments)

    @cached_property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for segment in self.segments for token in segment.token_ids)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Position of each segment's first token."""
        return tuple(accumulate((len(segment) for segment in self.segments), initial=0))[:-1]

    @property
    def chunks(self) -> tuple[Segment, ...]:
        return tuple(segment for segment in self.segments if segment.kind == "chunk")


def prompt_of(runs: Sequence[Segment], cache_points: tuple[CacheBreak, ...] = ()) -> Prompt:
    """A prompt from chunks and other runs in order, which are named by where they stand.

    Before the first chunk is the prefix, after the last one the suffix, and glue is in between. A
    chunk at the very end becomes the suffix, and is computed: the last row must give the logits.
    Raises ConfigError if there is no token.
    """
    runs = [run for run in runs if run.token_ids]
    segments: list[Segment] = []
    for index, run in enumerate(runs):
        last = index == len(runs) - 1
        if run.kind == "chunk" and not last:
            segments.append(run)
        elif segments and segments[-1].kind != "chunk":
            segments[-1] = Segment("glue", segments[-1].token_ids + run.token_ids)
        else:
            segments.append(Segment("glue", run.token_ids))
    if segments:
        segments[-1] = Segment("suffix", segments[-1].token_ids)
    if len(segments) > 1 and segments[0].kind == "glue":
        segments[0] = Segment("prefix", segments[0].token_ids)
    return Prompt(tuple(segments), cache_points)
