"""A queue at a single server, worked out: who comes when, and how long each waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PERCENTILE = 95
Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Served:
    """One request. ttft_s: from the moment its turn comes. total_s: until the next one's turn. Retrieval included."""

    question: str
    ttft_s: float
    total_s: float
    computed_tokens: int


def zipf_stream(questions: Sequence[str], requests: int, exponent: float) -> list[str]:
    """Questions drawn by Zipf's law over an order of popularity; the same for the same arguments."""
    random = np.random.default_rng(0)
    shares = np.arange(1, len(questions) + 1, dtype=np.float64) ** -exponent
    popular = random.permutation(len(questions))
    return [questions[popular[rank]] for rank in random.choice(len(questions), requests, p=shares / shares.sum())]


def unit_arrivals(requests: int) -> Seconds:
    """Moments at which requests arrive at a rate of one a second, at random (a Poisson stream), the first at 0."""
    gaps = np.random.default_rng(1).exponential(size=requests - 1)
    return np.concatenate([[0.0], np.cumsum(gaps)])


def first_token_seconds(arrivals: Seconds, served: Sequence[Served]) -> Seconds:
    """Seconds from each arrival to its first token when requests are answered in turn."""
    free = 0.0
    seconds = np.empty(len(served))
    for at, (arrival, each) in enumerate(zip(arrivals, served, strict=True)):
        begins = max(free, float(arrival))
        seconds[at] = begins - arrival + each.ttft_s
        free = begins + each.total_s
    return seconds


def highest_rate(arrivals: Seconds, served: Sequence[Served], bound_s: float) -> float:
    """Requests a second that keep the 95th percentile within the bound, to 1%; 0 where no rate does."""

    def keeps(rate: float) -> bool:
        return float(np.percentile(first_token_seconds(arrivals / rate, served), PERCENTILE)) <= bound_s

    low, high = 1e-3, 1e3
    if not keeps(low):
        return 0.0
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low
