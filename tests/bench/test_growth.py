"""What is measured of a growing library and of growing requests. How fast anything is, no test says."""

from __future__ import annotations

from pathlib import Path

import pytest

from ragblend.bench.data import Example, Passage
from ragblend.bench.growth.library import grow_library
from ragblend.bench.growth.requests import grow_processes, grow_requests
from ragblend.errors import ConfigError

EXAMPLES = [
    Example(
        id="1",
        question="How long is the nest covered?",
        answers=("For two years.",),
        passages=tuple(
            Passage("", f"The {name} is covered for two years. " * 9) for name in ("nest", "blade", "cable")
        ),
    )
]


def test_a_library_is_measured_at_each_size_in_a_process_of_its_own() -> None:
    steps: list[tuple[int, int]] = []
    small, large = grow_library([120, 60], windows=2, searches=3, progress=lambda *step: steps.append(step))
    assert [(row.chunks, row.vectors) for row in (small, large)] == [(60, 120), (120, 240)]
    assert steps == [(50, 120), (60, 120), (110, 120), (120, 120)]
    for row in (small, large):
        assert min(row.open_s, row.first_search_s, row.search_s, row.lookup_s) > 0
        assert row.index_bytes > row.vectors * 384 * 2
        assert row.catalogue_bytes > 0
    assert large.index_bytes > small.index_bytes


@pytest.mark.parametrize(
    ("sizes", "windows", "complaint"),
    [
        ([], 0, "at least one number of chunks"),
        ([10, 0], 0, "at least 1 chunk, got 0"),
        ([10], -1, "windows must not be negative"),
    ],
)
def test_refused(sizes: list[int], windows: int, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        grow_library(sizes, windows=windows)


def test_requests_are_measured_by_context_and_by_chunks(model: Path) -> None:
    rows = grow_requests([(120, 2), (240, 2), (240, 8)], model=model, prompts=1, threads=1, examples=EXAMPLES)
    assert [(row.system, row.context, row.chunks) for row in rows] == [
        (system, context, chunks)
        for context, chunks in ((120, 2), (240, 2), (240, 8))
        for system in ("ragblend", "transformers")
    ]
    assert all(row.ttft_s > 0 and row.peak_bytes > 10**7 for row in rows)
    with pytest.raises(ConfigError, match="chunks must be 1 to 120"):
        grow_requests([(120, 121)], model=model, examples=EXAMPLES)


def test_processes_answer_at_once_and_share_the_threads(model: Path) -> None:
    one, two = grow_processes(
        [1, 2], model=model, context=120, chunk_tokens=40, prompts=2, threads=2, examples=EXAMPLES
    )
    assert (one.processes, one.threads_each, two.processes, two.threads_each) == (1, 2, 2, 1)
    assert min(one.requests_per_s, two.requests_per_s, one.ttft_s, two.ttft_s) > 0
    assert two.peak_bytes > 1.5 * one.peak_bytes
    with pytest.raises(ConfigError, match="processes must be at least 1"):
        grow_processes([0], model=model, examples=EXAMPLES)
