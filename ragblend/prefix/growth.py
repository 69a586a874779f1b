"""What a finished request leaves behind, as stretches of a chain and as runs to keep."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from ragblend.prefix.chain import Blend, blocks_of, next_hash
from ragblend.prefix.index import jump_from
from ragblend.prefix.run import RUN_BLOCKS, Jump, Path, Run
from ragblend.store.key import token_bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished request.

    token_ids: of all rows that it has, answer included. prompt_tokens: of its prompt. path: what it reused
    of the cache as it stands. blend: how the rest came about, None where nothing approximate was reused
    beyond the path. chunks: start and key of each chunk of the prompt that a document or text had when it began.
    """

    token_ids: tuple[int, ...]
    prompt_tokens: int
    path: Path
    blend: Blend | None = None
    chunks: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Stretch:
    """Blocks from position ``start`` on that follow the hash ``parent``; ``jump`` is what they begin with."""

    start: int
    parent: bytes
    hashes: tuple[bytes, ...]
    block_tokens: int
    turns: int
    jump: Jump | None = None


def stretches(finished: Finished, end: int, block_tokens: int) -> Iterator[Stretch]:
    """The blocks behind the path, up to position ``end``: on the path's chain, then on the blend's own."""
    ids, path = token_bytes(finished.token_ids), finished.path
    going_on = path.turns + 1 if path.turns else 0
    if finished.blend is None:
        yield _stretch(ids, path.tokens, end, path.end, block_tokens, going_on)
        return
    turn_off = finished.blend.reused[0][0] // block_tokens * block_tokens
    before = _stretch(ids, path.tokens, min(turn_off, end), path.end, block_tokens, going_on)
    yield before
    last = before.hashes[-1] if before.hashes else path.end
    jump = jump_from(last, ids, turn_off, finished.prompt_tokens, finished.blend, block_tokens)
    yield _stretch(ids, turn_off, end, jump.seed, block_tokens, path.turns + 1, jump)


def runs_of(
    finished: Finished, stretch: Stretch, borders: Collection[int], is_kept: Callable[[bytes], bool], now: float
) -> Iterator[Run]:
    """The blocks of a stretch that are not kept yet, cut at ``borders`` and every RUN_BLOCKS."""
    size, first = stretch.block_tokens, 0
    for block in range(len(stretch.hashes) + 1):
        at = stretch.start + block * size
        kept = block < len(stretch.hashes) and is_kept(stretch.hashes[block])
        full = block - first == RUN_BLOCKS
        if block == len(stretch.hashes) or kept or full or at in borders:
            if block > first:
                begin = stretch.start + first * size
                yield Run(
                    start=begin,
                    token_ids=finished.token_ids[begin:at],
                    parent=stretch.hashes[first - 1] if first else stretch.parent,
                    hashes=stretch.hashes[first:block],
                    jump=None if first else stretch.jump,
                    built_on=frozenset(key for start, key in finished.chunks if start < at),
                    turns=stretch.turns,
                    used_at=now,
                )
            first = block + kept


def _stretch(
    ids: bytes, start: int, end: int, parent: bytes, block_tokens: int, turns: int, jump: Jump | None = None
) -> Stretch:
    hashes = []
    last = parent
    for block in blocks_of(ids, start // block_tokens, end // block_tokens, block_tokens):
        last = next_hash(last, block)
        hashes.append(last)
    return Stretch(start, parent, tuple(hashes), block_tokens, turns, jump)
