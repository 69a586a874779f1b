"""The plan of a request: what stands where, what the store has, and which rows must be computed."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ragblend.blend.anchor import Anchor
from ragblend.errors import ContextOverflowError
from ragblend.prefix.request import Part
from ragblend.prefix.run import PartReader
from ragblend.prompt import Prompt, Segment
from ragblend.prompt.segments import CacheBreak
from ragblend.store.base import KVReader, KVStore
from ragblend.store.memory import MemoryReader

# What a policy lets a request reuse: all stored chunks, only what is exact, or nothing.
Reuse = Literal["all", "exact", "nothing"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Stored KV that goes to positions start..start+tokens-1. key is None for the anchor.

    exact: the KV is what a full prefill would compute there, so it is never recomputed.
    canonical: its keys are, and are turned to their positions; others stand where they were computed.
    settled: inexact, but left as it is all the same.
    """

    start: int
    reader: KVReader
    exact: bool
    key: str | None
    canonical: bool = True
    settled: bool = False

    @property
    def stop(self) -> int:
        return self.start + self.reader.tokens


@dataclass(frozen=True)
class Plan:
    """token_ids: [T] int64. placements: in order of position. mandatory: [n] int64, sorted rows that
    every policy computes. candidates: [m] int64, sorted reused positions that a policy may recompute.
    suffix_start: first position of the last segment. prefix_tokens: placed from the prefix cache. hits: chunks that are
    reused. misses: chunks that the store does not have. matched_tokens: of chunks that it has, whether or not
    they may be reused.
    """

    token_ids: Tensor
    placements: tuple[Placement, ...]
    mandatory: Tensor
    candidates: Tensor
    suffix_start: int
    prefix_tokens: int
    hits: int
    misses: int
    matched_tokens: int

    def __len__(self) -> int:
        return int(self.token_ids.shape[0])

    def close(self) -> None:
        for placement in self.placements:
            placement.reader.close()


def make_plan(
    prompt: Prompt,
    anchor: Anchor,
    store: KVStore | None,
    reuse: Reuse,
    device: torch.device,
    lost: AbstractSet[str] = frozenset(),
    kept: Sequence[Part] = (),
) -> Plan:
    """Look every chunk up and lay the prompt out; entries in ``lost`` count as absent.

    As much of the anchor is placed as the prompt begins with; a chunk right behind all of it is exact, unless
    it was prefilled behind a context of its own.
    kept: the prompt's beginning as the prefix cache has it, which takes the anchor's place. Of a chunk that
    it ends in, only the rest is placed.
    """
    total = len(prompt)
    shared = shared_prefix(prompt, anchor)
    placements: list[Placement] = []
    hits = misses = matched_tokens = 0
    prefix_tokens = kept[-1].start + kept[-1].reader.tokens if kept else 0
    if kept:
        placements += [_as_it_stands(part) for part in kept]
    elif shared and reuse != "nothing":
        placements.append(Placement(0, MemoryReader(anchor.first(shared)), exact=True, key=None, canonical=False))
    exact_start = shared if shared == len(anchor.token_ids) else -1
    for start, segment in zip(prompt.starts, prompt.segments, strict=True):
        exact = start == exact_start and (anchor.in_prompts or not segment.in_context)
        if segment.kind != "chunk":
            continue
        if start + len(segment) <= prefix_tokens:
            hits += 1
            matched_tokens += len(segment)
            continue
        if reuse == "nothing" or (reuse == "exact" and not exact):
            matched_tokens += len(segment) if _is_stored(store, segment) else 0
            continue
        reader = None if segment.key in lost else _lookup(store, segment)
        if reader is None:
            misses += 1
        else:
            hits += 1
            matched_tokens += len(segment)
            if start < prefix_tokens:
                reader = PartReader(reader, prefix_tokens - start, start + len(segment) - prefix_tokens)
            placements.append(Placement(max(start, prefix_tokens), reader, exact, segment.key))
    covered = torch.zeros(total, dtype=torch.bool)
    inexact = torch.zeros(total, dtype=torch.bool)
    for placement in placements:
        covered[placement.start : placement.stop] = True
        inexact[placement.start : placement.stop] = not placement.exact and not placement.settled
    return Plan(
        token_ids=torch.tensor(prompt.token_ids, device=device),
        placements=tuple(placements),
        mandatory=(~covered).nonzero()[:, 0].to(device),
        candidates=inexact.nonzero()[:, 0].to(device),
        suffix_start=prompt.starts[-1],
        prefix_tokens=prefix_tokens,
        hits=hits,
        misses=misses,
        matched_tokens=matched_tokens,
    )


def fit_context(
    prompt: Prompt, answer_tokens: int, limit: int, overflow: Literal["refuse", "drop"]
) -> tuple[Prompt, tuple[Segment, ...]]:
    """The prompt that fits, and the chunks left out, lowest score first.

    Raises ContextOverflowError when nothing may be dropped or dropping every chunk is not enough.
    """
    dropped: list[Segment] = []
    while len(prompt) + answer_tokens > limit:
        chunks = prompt.chunks
        if overflow == "refuse" or not chunks:
            raise ContextOverflowError(len(prompt), answer_tokens, limit, sum(map(len, chunks)))
        lowest = min(reversed(chunks), key=lambda chunk: chunk.source.score if chunk.source else 0.0)
        position = next(index for index, segment in enumerate(prompt.segments) if segment is lowest)
        moved = [_without(point, prompt.starts[position], len(lowest)) for point in prompt.cache_points]
        rest = prompt.segments[:position] + prompt.segments[position + 1 :]
        prompt = replace(prompt, segments=rest, cache_points=tuple(moved))
        dropped.append(lowest)
    return prompt, tuple(dropped)


def _without(point: CacheBreak, start: int, tokens: int) -> CacheBreak:
    """A cache point once ``tokens`` tokens from ``start`` on are left out."""
    return replace(point, tokens=point.tokens - min(tokens, max(0, point.tokens - start)))


def _as_it_stands(part: Part) -> Placement:
    return Placement(part.start, part.reader, part.exact, part.key, canonical=False, settled=part.settled)


def _is_stored(store: KVStore | None, segment: Segment) -> bool:
    return store is not None and segment.key is not None and store.contains(segment.key)


def shared_prefix(prompt: Prompt, anchor: Anchor) -> int:
    """How many of the anchor's rows stand at the prompt's beginning, before its first chunk."""
    starts = (start for start, segment in zip(prompt.starts, prompt.segments, strict=True) if segment.kind == "chunk")
    limit = min(next(starts, len(prompt)), len(prompt) - 1, len(anchor.token_ids))
    pairs = zip(prompt.token_ids[:limit], anchor.token_ids, strict=False)
    return next((position for position, (own, other) in enumerate(pairs) if own != other), limit)


def _lookup(store: KVStore | None, segment: Segment) -> KVReader | None:
    if store is None or segment.key is None:
        return None
    reader = store.open(segment.key, segment.entry_ids or segment.token_ids)
    # A token's KV depends on nothing behind it, so the beginning of an entry is an entry.
    return PartReader(reader, 0, len(segment)) if reader and segment.entry_ids else reader
