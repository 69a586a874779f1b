"""One request's use of a prefix cache: what it finds there, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ragblend.prefix.cache import PrefixCache, Take
from ragblend.prefix.chain import Blend, Reused
from ragblend.prefix.growth import Finished
from ragblend.prefix.index import Sought
from ragblend.prefix.run import PartReader, Path
from ragblend.prefix.statistics import HourlyUse
from ragblend.prompt.segments import CacheBreak, Prompt
from ragblend.results import CachePointUse
from ragblend.store.base import KVReader, MissCause
from ragblend.store.key import token_bytes

SHORT_TTL_S = 300.0


@dataclass(frozen=True, slots=True)
class Part:
    """Kept rows that go to positions start..start+tokens-1. settled: no policy recomputes them."""

    start: int
    reader: KVReader
    key: str
    exact: bool
    settled: bool


@dataclass(frozen=True, slots=True)
class Created:
    """Computed prompt tokens that are kept now; of them, those with a time to live, by how long it is."""

    tokens: int = 0
    tokens_5m: int = 0
    tokens_1h: int = 0


class PrefixRequest:
    """Of one prompt under one policy. Find, compute, keep, close: in this order, and close always.

    policy: None where only exact KV may be reused.
    """

    def __init__(self, cache: PrefixCache, prompt: Prompt, policy: str | None, ratio: float | str) -> None:
        self._cache = cache
        self._prompt = prompt
        self._refine = cache.settings.approximate == "refine"
        self._policy, self._ratio = policy or "", ratio
        approximate = policy is not None and cache.settings.approximate != "forbid" and ratio != 1
        self._sought = Sought(token_bytes(prompt.token_ids), policy if approximate else None, ratio)
        chunks = zip(prompt.starts, prompt.segments, strict=True)
        keys = [(start, segment.key) for start, segment in chunks if segment.kind == "chunk" and segment.key]
        # Others' chunks, which no document here has, are no reason to forget anything.
        owned = cache.known([key for _, key in keys])
        self._chunks = tuple((start, key) for start, key in keys if key in owned)
        self._path: Path | None = None

    def find(self, longer_than: int = 0) -> tuple[Part, ...]:
        """The longest kept beginning of the prompt. May be called again when a part could not be read."""
        self.close()
        path = self._cache.find(self._sought, longer_than)
        parts = []
        for piece in path:
            reader = self._cache.open(piece.run)
            if reader is None:
                break
            if not piece.whole:
                reader = PartReader(reader, piece.start - piece.run.start, piece.tokens)
            exact = piece.run.exact
            parts.append(Part(piece.start, reader, piece.run.key, exact, exact or not self._refine))
        self._path = path.first(len(parts))
        for piece in path.pieces[len(parts) :]:
            self._cache.release([piece])
        return tuple(parts)

    def discard(self, key: str, cause: MissCause) -> bool:
        """Give up a part that could not be read to its end; False if it is none of the cache's."""
        return self._cache.discard(key, cause)

    def keep(
        self,
        take: Take,
        token_ids: tuple[int, ...],
        reused: Reused,
        computed: Callable[[int, int], int],
        completion_tokens: int,
    ) -> tuple[Created, tuple[CachePointUse, ...]]:
        """Keep the rows of the finished request.

        token_ids: of all its rows. reused: approximate KV that is neither exact now nor settled.
        computed(first, last): how many rows from position first to before last were computed. completion_tokens: of the
        answer, the last of which has no row.
        """
        path = self._path or self._cache.nothing
        base = path.exact() if self._refine else path
        blend = Blend(self._policy, self._ratio, reused) if reused else None
        limits = [(point.tokens, point.ttl_s) for point in self._honoured]
        finished = Finished(token_ids, len(self._prompt), base, blend, self._chunks)
        before, kept = (min(tokens, len(self._prompt)) for tokens in self._cache.keep(finished, take, limits))
        created = self._created(max(before, path.tokens), kept, computed)
        self._count(path, created, completion_tokens)
        return created, self._uses(path, kept)

    def close(self) -> None:
        """Let go of what was found. Closing twice is no error."""
        if self._path is not None:
            self._cache.release(self._path)
            self._path = None

    @property
    def _honoured(self) -> Sequence[CacheBreak]:
        least = self._cache.settings.minimum_tokens
        return [point for point in self._prompt.cache_points if point.tokens >= least]

    def _created(self, first: int, kept: int, computed: Callable[[int, int], int]) -> Created:
        long = max((point.tokens for point in self._honoured if point.ttl_s > SHORT_TTL_S), default=0)
        short = max((point.tokens for point in self._honoured if point.ttl_s <= SHORT_TTL_S), default=0)
        return Created(
            computed(first, kept),
            computed(max(first, long), min(kept, short)),
            computed(first, min(kept, long)),
        )

    def _count(self, path: Path, created: Created, completion_tokens: int) -> None:
        use = HourlyUse(
            hour=0,
            requests=1,
            hits=int(path.tokens > 0),
            prompt_tokens=len(self._prompt),
            read_tokens=path.tokens,
            written_tokens=created.tokens,
            written_5m_tokens=created.tokens_5m,
            written_1h_tokens=created.tokens_1h,
            completion_tokens=completion_tokens,
        )
        self._cache.count(use, path)

    def _uses(self, path: Path, kept: int) -> tuple[CachePointUse, ...]:
        settings = self._cache.settings
        uses = []
        for point in self._prompt.cache_points:
            whole = point.tokens - point.tokens % settings.block_tokens
            reason = ""
            if point.tokens < settings.minimum_tokens:
                reason = f"{point.tokens:,} tokens are fewer than the minimum of {settings.minimum_tokens:,}"
            elif kept < whole:
                reason = "the cache's budget has no room for it"
            uses.append(CachePointUse(point.tokens, point.ttl_s, min(whole, path.tokens), not reason, reason))
        return tuple(uses)
