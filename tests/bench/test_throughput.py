"""The queue that is worked out, against one that a reader can follow, and the stream served by a real library."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ragblend.bench import throughput
from ragblend.bench.queueing import Served, first_token_seconds, highest_rate, unit_arrivals, zipf_stream
from ragblend.engine import Engine
from ragblend.errors import ConfigError


def served(ttft_s: float, total_s: float, count: int = 1) -> list[Served]:
    return [Served("?", ttft_s, total_s, 1)] * count


def test_who_comes_while_another_is_served_waits() -> None:
    requests = served(1.0, 3.0) + served(0.5, 2.0) + served(0.5, 2.0)
    arrivals = np.array([0.0, 1.0, 9.0])
    # The second one begins at 3, two seconds after it came; the third finds nobody.
    assert first_token_seconds(arrivals, requests).tolist() == [1.0, 2.5, 0.5]


def test_at_a_low_rate_nobody_waits_and_at_a_high_one_everybody_does() -> None:
    requests, arrivals = served(0.2, 1.0, 50), unit_arrivals(50)
    assert first_token_seconds(arrivals / 1e-6, requests).tolist() == [0.2] * 50
    at_once = first_token_seconds(arrivals / 1e9, requests)
    assert at_once == pytest.approx([0.2 + number for number in range(50)], abs=1e-6)


def test_the_highest_rate_keeps_the_bound_and_a_higher_one_does_not() -> None:
    requests, arrivals = served(0.2, 1.0, 200), unit_arrivals(200)
    rate = highest_rate(arrivals, requests, bound_s=3.0)
    assert 0.1 < rate < 1.5
    assert np.percentile(first_token_seconds(arrivals / rate, requests), 95) <= 3.0
    assert np.percentile(first_token_seconds(arrivals / (rate * 1.02), requests), 95) > 3.0
    assert highest_rate(arrivals, requests, bound_s=0.1) == 0.0


def test_arrivals_are_random_and_one_a_second() -> None:
    arrivals = unit_arrivals(20_000)
    gaps = np.diff(arrivals)
    assert arrivals[0] == 0
    assert gaps.mean() == pytest.approx(1.0, abs=0.03)
    assert gaps.std() == pytest.approx(1.0, abs=0.05)


def test_popular_questions_come_as_often_as_zipfs_law_says() -> None:
    stream = zipf_stream([str(number) for number in range(10)], 20_000, 1.0)
    counts = [count for _, count in Counter(stream).most_common()]
    harmonic = sum(1 / rank for rank in range(1, 11))
    assert counts[0] / 20_000 == pytest.approx(1 / harmonic, abs=0.02)
    assert counts[0] / counts[1] == pytest.approx(2.0, abs=0.2)
    assert zipf_stream(["a", "b"], 9, 1.0) == zipf_stream(["a", "b"], 9, 1.0)


@pytest.mark.real_model
def test_a_report_has_every_policy_at_every_rate_and_bound(tiny_engine: Engine, tmp_path: Path) -> None:
    for name in ("nest", "blade", "cable"):
        (tmp_path / f"{name}.md").write_text(f"The {name} is covered for two years.\n")
    steps: list[tuple[int, int]] = []
    report = throughput.run(
        tiny_engine,
        policies=["full", "none"],
        ratio=0.1,
        requests=3,
        k=2,
        answer_tokens=2,
        rates=[0.5, 1.0],
        bounds_s=[100.0],
        documents=tmp_path,
        questions=["How long is the nest covered?", "And the blade?"],
        progress=lambda *step: steps.append(step),
    )
    assert [(row.policy, row.requests_per_s) for row in report.rows] == [
        (policy, rate) for policy in ("full", "none") for rate in (0.5, 1.0)
    ]
    assert [bound.policy for bound in report.bounds] == ["full", "none"]
    full, none = report.bounds
    assert none.computed_tokens < full.computed_tokens
    assert steps == [(done, 6) for done in range(1, 7)]
    assert [len(each) for each in report.served.values()] == [3, 3]
    for full_answer, none_answer in zip(*report.served.values(), strict=True):
        assert full_answer.question == none_answer.question
        assert full_answer.ttft_s < full_answer.total_s


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"requests": 0}, "requests must be at least 1"),
        ({"k": 0}, "k must be at least 1"),
        ({"exponent": -1.0}, "exponent must not be negative"),
        ({"rates": [0.0]}, "rates must be above 0"),
        ({"bounds_s": []}, "bounds must be above 0"),
        ({"policies": ["best"]}, "unknown policy"),
    ],
)
def test_refused(tiny_engine: Engine, change: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        throughput.run(tiny_engine, **{"policies": ["none"], "ratio": 0.1, **change})
