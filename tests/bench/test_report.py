"""Rows from measurements, with figures worked out by hand."""

from __future__ import annotations

import pytest

from ragblend.bench.baseline import judge
from ragblend.bench.report import make_row
from ragblend.bench.trial import Measurement


def measurement(policy: str, question: int, *, f1: float, kl: float, ttft_s: float) -> Measurement:
    return Measurement(
        id=f"q{question}",
        policy=policy,
        ratio=0.1,
        answer="",
        f1=f1,
        em=float(f1 == 1),
        kl_to_full=kl,
        top1_agreement=1.0,
        gold_nll=2.0,
        ttft_s=ttft_s,
        prompt_tokens=100,
        computed_tokens=10 + question,
    )


FULL = [measurement("full", number, f1=1.0, kl=0.0, ttft_s=seconds) for number, seconds in enumerate((1.0, 2.0, 9.0))]
QUERY = [
    measurement("query", number, f1=f1, kl=kl, ttft_s=0.5)
    for number, (f1, kl) in enumerate([(1.0, 0.3), (0.5, 0.0), (0.0, 0.6)])
]


def test_means_and_the_median_speedup() -> None:
    row = make_row(QUERY, FULL, judge([100], own=[1.0], theirs=[1.5], attention="sdpa"))
    assert (row.policy, row.ratio, row.n) == ("query", 0.1, 3)
    assert row.f1 == pytest.approx(0.5)
    assert row.em == pytest.approx(1 / 3)
    assert row.kl_to_full == pytest.approx(0.3)
    assert row.speedup_vs_full == pytest.approx(4.0)  # 2x, 4x and 18x
    assert row.computed_tokens == pytest.approx(11)
    assert row.versus_full["f1"].mean == pytest.approx(-0.5)
    assert row.versus_full["gold_nll"].mean == 0.0


def test_where_transformers_is_faster_the_speedup_is_against_it() -> None:
    row = make_row(QUERY, FULL, judge([100], own=[2.0], theirs=[1.5], attention="sdpa"))
    assert row.speedup_vs_full == pytest.approx(4.0 * 0.75)
