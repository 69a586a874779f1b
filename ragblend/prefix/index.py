"""The index: which blocks are kept, and the longest path of them along a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ragblend.prefix.chain import TOKEN_BYTES, Blend, blended_seed, blocks_of, next_hash
from ragblend.prefix.run import Jump, Path, Piece, Run, path_of


@dataclass(frozen=True, slots=True)
class Sought:
    """What a request looks for. ids: of its whole prompt, as bytes. policy: None where only exact KV will do."""

    ids: bytes
    policy: str | None = None
    ratio: float | str = 0.0

    @property
    def tokens(self) -> int:
        return len(self.ids) // TOKEN_BYTES


class Index:
    """Runs by the hashes of their blocks. Not safe to share between threads by itself."""

    def __init__(self, root: bytes, block_tokens: int) -> None:
        self.root = root
        self.block_tokens = block_tokens
        self._blocks: dict[bytes, tuple[Run, int]] = {}
        self._jumps: dict[bytes, dict[Jump, int]] = {}
        self._runs: dict[str, Run] = {}

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs.values()))

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, key: str) -> Run | None:
        return self._runs.get(key)

    def has_block(self, block_hash: bytes) -> bool:
        return block_hash in self._blocks

    def run_with(self, block_hash: bytes) -> Run | None:
        """The run that has a block."""
        return self._blocks.get(block_hash, (None, 0))[0]

    def add(self, run: Run) -> None:
        """Add a run. Blocks that are there already stay with the run that has them."""
        self._runs[run.key] = run
        for ordinal, block_hash in enumerate(run.hashes):
            self._blocks.setdefault(block_hash, (run, ordinal))
        if run.jump is not None:
            jumps = self._jumps.setdefault(run.jump.parent, {})
            jumps[run.jump] = jumps.get(run.jump, 0) + 1

    def remove(self, run: Run) -> None:
        if self._runs.pop(run.key, None) is None:
            return
        for block_hash in run.hashes:
            if self._blocks.get(block_hash, (None, 0))[0] is run:
                del self._blocks[block_hash]
        if run.jump is not None:
            jumps = self._jumps[run.jump.parent]
            jumps[run.jump] -= 1
            if not jumps[run.jump]:
                del jumps[run.jump]
            if not jumps:
                del self._jumps[run.jump.parent]

    def longest(self, sought: Sought, now: float, is_readable: Callable[[Run], bool]) -> Path:
        """The longest path of blocks that can be read now; the prompt's last token is never part of it."""

        def usable(run: Run) -> bool:
            return run.expires_at() > now and is_readable(run)

        blocks = (sought.tokens - 1) // self.block_tokens
        best: list[Piece] = []
        for pieces in self._paths(sought, self.root, 0, blocks, usable):
            if _blocks_in(pieces) > _blocks_in(best):
                best = pieces
        return path_of(best, self.root)

    def _paths(
        self, sought: Sought, parent: bytes, block: int, limit: int, usable: Callable[[Run], bool]
    ) -> Iterator[list[Piece]]:
        """The path straight on from ``parent``, and those that turn off it with a blended request."""
        pieces: list[Piece] = []
        borders = [(parent, block)]
        for ids in blocks_of(sought.ids, block, limit, self.block_tokens):
            parent = next_hash(parent, ids)
            run, ordinal = self._blocks.get(parent, (None, 0))
            if run is None:
                break
            if pieces and pieces[-1].run is run:
                pieces[-1] = Piece(run, pieces[-1].first, ordinal + 1)
            elif not usable(run):
                break
            else:
                pieces.append(Piece(run, ordinal, ordinal + 1))
            borders.append((parent, borders[-1][1] + 1))
        yield pieces
        if sought.policy is None:
            return
        for border, at in borders:
            for jump in self._fitting(sought, border, at):
                for rest in self._paths(sought, jump.seed, at, limit, usable):
                    if rest:
                        yield [*_first(pieces, at - block), *rest]

    def _fitting(self, sought: Sought, border: bytes, block: int) -> Iterable[Jump]:
        """Blended requests behind ``border`` whose whole prompt ``sought`` begins with and goes beyond."""
        start = block * self.block_tokens * TOKEN_BYTES
        for jump in self._jumps.get(border, ()):
            end = jump.length * TOKEN_BYTES
            if (
                end < len(sought.ids)
                and sought.ids[end - len(jump.tail) : end] == jump.tail
                and (jump.blend.policy, jump.blend.ratio) == (sought.policy, sought.ratio)
                and blended_seed(border, sought.ids[start:end], jump.blend) == jump.seed
            ):
                yield jump


def jump_from(parent: bytes, ids: bytes, start: int, length: int, blend: Blend, block_tokens: int) -> Jump:
    """The jump of a blended prompt of ``length`` tokens that leaves its chain at position ``start``."""
    end = length * TOKEN_BYTES
    tail = ids[max(start, length - block_tokens) * TOKEN_BYTES : end]
    return Jump(parent, blended_seed(parent, ids[start * TOKEN_BYTES : end], blend), length, tail, blend)


def _blocks_in(pieces: Iterable[Piece]) -> int:
    return sum(piece.last - piece.first for piece in pieces)


def _first(pieces: list[Piece], blocks: int) -> Iterator[Piece]:
    for piece in pieces:
        if blocks <= 0:
            return
        yield Piece(piece.run, piece.first, min(piece.last, piece.first + blocks))
        blocks -= piece.last - piece.first
