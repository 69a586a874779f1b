"""Which entries make room: the ones that are the least worth their bytes.

Size-adjusted LRU with costs (Aggarwal, Wolf, Yu: Caching on the World Wide Web, 1999): an entry's worth is the
seconds that keeping it saves per byte, divided by the time for which nobody has used it. Where all entries cost
the same per byte this is plain LRU; where they do not, what is cheap to compute again goes first.
``tests/benchmarks/eviction_study.py`` measures it against plain LRU on a Zipf trace.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_SHORTEST_IDLE_S = 1e-6


@dataclass(frozen=True, slots=True)
class Candidate:
    """An entry that may be evicted. seconds: what computing it took, 0 if that is not known.

    kept: somebody asked for it to be kept, so it goes after all others. weight: what it is worth next to a chunk of the
    same cost. start: where it stands in its prompt. Of entries that are worth the same the later one goes first, which
    is of no use without the earlier.
    """

    key: str
    nbytes: int
    seconds: float
    idle_s: float
    kept: bool = False
    weight: float = 1.0
    start: int = 0


def victims(candidates: Iterable[Candidate], wanted_bytes: int) -> list[Candidate]:
    """The candidates to evict, least worth first, until ``wanted_bytes`` are free (or all, if they are not enough).

    An entry of unknown cost counts as an average one.
    """
    candidates = list(candidates)
    known = [candidate for candidate in candidates if candidate.seconds > 0 and candidate.nbytes]
    known_bytes = sum(candidate.nbytes for candidate in known)
    average = sum(candidate.seconds for candidate in known) / known_bytes if known_bytes else 1.0

    def worth(candidate: Candidate) -> float:
        if not candidate.nbytes:
            return 0.0
        density = candidate.seconds / candidate.nbytes if candidate.seconds > 0 else average
        return candidate.weight * density / max(candidate.idle_s, _SHORTEST_IDLE_S)

    chosen: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda each: (each.kept, worth(each), -each.start, each.key)):
        if wanted_bytes <= 0:
            break
        chosen.append(candidate)
        wanted_bytes -= candidate.nbytes
    return chosen
