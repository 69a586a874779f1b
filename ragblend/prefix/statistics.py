"""What the prefix cache saved: counters by the hour, without a word of any prompt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace

from ragblend.prefix.run import Run

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class HourlyUse:
    """One hour of requests, in tokens. hour: since the epoch.

    read: prompt tokens whose KV the prefix cache had. written: computed prompt tokens that it kept; of
    them written_5m and written_1h for cache points and named caches of that time to live.
    """

    hour: int
    requests: int = 0
    hits: int = 0
    prompt_tokens: int = 0
    read_tokens: int = 0
    written_tokens: int = 0
    written_5m_tokens: int = 0
    written_1h_tokens: int = 0
    completion_tokens: int = 0

    def plus(self, other: HourlyUse) -> HourlyUse:
        sums = (own + its for own, its in zip(astuple(self)[1:], astuple(other)[1:], strict=True))
        return HourlyUse(self.hour, *sums)

    @property
    def hit_rate(self) -> float:
        """Share of the prompts' tokens that were read."""
        return self.read_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def total(hours: Iterable[HourlyUse]) -> HourlyUse:
    """The sum of hours, as of hour 0."""
    found = HourlyUse(0)
    for hour in hours:
        found = found.plus(hour)
    return found


class Counters:
    """Hours in order. ``pending`` is what was counted since it was last taken."""

    def __init__(self, hours: Iterable[HourlyUse] = ()) -> None:
        self._hours = {hour.hour: hour for hour in hours}
        self._pending: dict[int, HourlyUse] = {}

    def count(self, now: float, use: HourlyUse) -> None:
        hour = int(now // SECONDS_PER_HOUR)
        use = replace(use, hour=hour)
        for counted in (self._hours, self._pending):
            counted[hour] = counted.get(hour, HourlyUse(hour)).plus(use)

    def take_pending(self) -> list[HourlyUse]:
        taken, self._pending = list(self._pending.values()), {}
        return taken

    @property
    def hours(self) -> tuple[HourlyUse, ...]:
        return tuple(self._hours[hour] for hour in sorted(self._hours))


@dataclass(frozen=True, slots=True)
class PrefixUse:
    """A kept prefix, named by the beginning of its hash. tokens: up to its end.

    reads: requests that used it. saved_tokens: not computed thanks to it. ttl_s: None without one.
    """

    id: str
    tokens: int
    reads: int
    saved_tokens: int
    exact: bool
    ttl_s: float | None
    used_at: float
    in_memory: bool
    on_disk: bool

    @classmethod
    def of(cls, run: Run) -> PrefixUse:
        return cls(
            id=run.key[:12],
            tokens=run.stop,
            reads=run.reads,
            saved_tokens=run.read_tokens,
            exact=run.exact,
            ttl_s=run.ttl_s,
            used_at=run.used_at,
            in_memory=run.memory_bytes > 0,
            on_disk=run.on_disk,
        )


@dataclass(frozen=True, slots=True)
class CacheStatistics:
    """One namespace's prefix cache. hours: since its counting began. top: prefixes by tokens saved."""

    namespace: str
    total: HourlyUse
    hours: tuple[HourlyUse, ...]
    top: tuple[PrefixUse, ...]
    prefixes: int
    tokens: int
    memory_bytes: int
    memory_budget: int
    disk_bytes: int
    disk_budget: int
    evicted: int
    expired: int
    failed_writes: int
