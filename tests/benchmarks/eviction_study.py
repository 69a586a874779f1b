"""Cost-aware eviction against plain LRU on Zipf traces, in seconds of computing again.

    python tests/benchmarks/eviction_study.py [--entries 2000] [--requests 60000] [--seeds 3]

Requests fall on entries by Zipf's law with exponent 0.9. A request that misses costs the entry's seconds, and the
entry is put. Three kinds of entries:

- ``chunks``: of one model, 16 to 2,048 tokens; a fixed cost of each pass, so short chunks cost more per byte,
  and a part that grows with the square of the length;
- ``codecs``: the same, half of them stored in half the bytes;
- ``models``: of two models, one of which computes a byte of KV ten times as long as the other.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from ragblend.store.eviction import Candidate, victims

KINDS = ("chunks", "codecs", "models")
_LOW_WATERMARK = 0.95
_BYTES_PER_TOKEN = 23_040  # of the embedded model: 30 layers, 3 heads of 64, keys and values in bfloat16


@dataclass(frozen=True)
class Trace:
    """nbytes, seconds: of each entry. requests: indices of entries, in order."""

    nbytes: np.ndarray
    seconds: np.ndarray
    requests: np.ndarray

    @classmethod
    def zipf(cls, *, seed: int, entries: int, requests: int, kind: str = "models", exponent: float = 0.9) -> Trace:
        random = np.random.default_rng(seed)
        tokens = np.clip(random.lognormal(5.3, 1.0, entries), 16, 2048).astype(int)
        nbytes = tokens * _BYTES_PER_TOKEN
        seconds = 0.02 + 4e-4 * tokens + 1e-7 * tokens**2
        if kind == "codecs":
            nbytes = np.where(random.random(entries) < 0.5, nbytes, nbytes // 2)
        if kind == "models":
            seconds = np.where(random.random(entries) < 0.5, seconds, 10 * seconds)
        shares = np.arange(1, entries + 1) ** -exponent
        drawn = random.choice(entries, requests, p=shares / shares.sum())
        return cls(nbytes, seconds, random.permutation(entries)[drawn])


@dataclass(frozen=True)
class Outcome:
    """Seconds of computing again, and the share of requests that hit."""

    seconds: float
    hits: float


def replay(trace: Trace, share: float, *, costs: bool = True) -> Outcome:
    """Run a trace through a cache that holds ``share`` of all bytes, with costs or as plain LRU."""
    budget = int(share * trace.nbytes.sum())
    used_at: dict[int, int] = {}
    held = 0
    seconds = 0.0
    hits = 0
    for now, entry in enumerate(trace.requests.tolist()):
        if entry in used_at:
            hits += 1
        else:
            seconds += float(trace.seconds[entry])
            size = int(trace.nbytes[entry])
            if held + size > budget:
                found = [
                    Candidate(str(key), int(trace.nbytes[key]), float(trace.seconds[key]), now - then)
                    for key, then in used_at.items()
                ]
                wanted = held + size - int(_LOW_WATERMARK * budget)
                for victim in victims(found, wanted) if costs else _oldest(found, wanted):
                    held -= victim.nbytes
                    del used_at[int(victim.key)]
            held += size
        used_at[entry] = now
    return Outcome(seconds, hits / len(trace.requests))


def _oldest(found: list[Candidate], wanted: int) -> list[Candidate]:
    """Plain LRU, written down by itself so that the comparison does not depend on the rule compared."""
    chosen = []
    for candidate in sorted(found, key=lambda candidate: -candidate.idle_s):
        if wanted <= 0:
            break
        chosen.append(candidate)
        wanted -= candidate.nbytes
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=2_000)
    parser.add_argument("--requests", type=int, default=60_000)
    parser.add_argument("--seeds", type=int, default=3)
    settings = parser.parse_args()
    print(f"{'entries':8} {'cache':>6} {'LRU hits':>9} {'hits':>6} {'seconds against LRU':>20}")
    for kind in KINDS:
        for share in (0.02, 0.05, 0.1, 0.25):
            rows = []
            for seed in range(settings.seeds):
                trace = Trace.zipf(seed=seed, entries=settings.entries, requests=settings.requests, kind=kind)
                plain, aware = replay(trace, share, costs=False), replay(trace, share)
                rows.append((plain.hits, aware.hits, aware.seconds / plain.seconds))
            plain_hits, hits, seconds = np.mean(rows, axis=0)
            print(f"{kind:8} {share:6.0%} {plain_hits:9.1%} {hits:6.1%} {seconds:20.2f}", flush=True)


if __name__ == "__main__":
    main()
