"""From measurements of single questions to the rows of ``ragblend bench quality``."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ragblend.bench.baseline import Baseline
from ragblend.bench.machine import Machine
from ragblend.bench.metrics import Mean, bootstrap_mean
from ragblend.bench.trial import Measurement
from ragblend.errors import ConfigError

METRICS = ("f1", "em", "kl_to_full", "top1_agreement", "gold_nll")


@dataclass(frozen=True, slots=True)
class QualityRow:
    """Means over ``n`` questions. speedup_vs_full: the median over the questions.

    intervals: of each mean, low and high at 95%. versus_full: paired differences to full prefill,
    the policy's value less full prefill's. ttft_s: the median.
    """

    policy: str
    ratio: float
    f1: float
    em: float
    kl_to_full: float
    top1_agreement: float
    gold_nll: float
    speedup_vs_full: float
    n: int
    ttft_s: float
    computed_tokens: float
    intervals: dict[str, tuple[float, float]]
    versus_full: dict[str, Mean]


@dataclass(frozen=True, slots=True)
class QualitySettings:
    """How the report was made. too_long: ids of examples that did not fit the model's context."""

    data: str
    question: str
    answer_tokens: int
    passage_tokens: int
    prompt_tokens: float
    too_long: tuple[str, ...]


@dataclass(frozen=True)
class QualityReport:
    """rounding_kl: KL between our full prefill and transformers' own, which differ only by the dtype's
    rounding: a policy's ``kl_to_full`` below it means nothing. measurements: every policy on every question.
    """

    rows: tuple[QualityRow, ...]
    baseline: Baseline
    rounding_kl: float
    settings: QualitySettings
    machine: Machine
    measurements: tuple[Measurement, ...]

    def difference(self, metric: str, first: tuple[str, float], second: tuple[str, float]) -> Mean:
        """Paired difference of a metric between two rows, each named by policy and ratio: first less second.

        Raises ConfigError for a row or metric that the report does not have.
        """
        if metric not in (*METRICS, "ttft_s"):
            raise ConfigError(f"unknown metric {metric!r}: choose one of {', '.join(METRICS)}, ttft_s")
        return _paired(metric, self._of(first), self._of(second))

    def _of(self, row: tuple[str, float]) -> list[Measurement]:
        found = [each for each in self.measurements if (each.policy, each.ratio) == row]
        if not found:
            raise ConfigError(f"the report has no row {row[0]} at ratio {row[1]}")
        return found


def make_row(measured: Sequence[Measurement], full: Sequence[Measurement], baseline: Baseline) -> QualityRow:
    """Sum up one policy's measurements; ``full`` holds full prefill's on the same questions."""
    means = {metric: bootstrap_mean([getattr(each, metric) for each in measured]) for metric in METRICS}
    # transformers' own prefill runs on some of the questions only; where it wins, its lead there counts for all.
    handicap = min(1.0, baseline.transformers_s / baseline.ragblend_full_s)
    speedups = [own.ttft_s / each.ttft_s for own, each in zip(full, measured, strict=True)]
    return QualityRow(
        policy=measured[0].policy,
        ratio=measured[0].ratio,
        f1=means["f1"].mean,
        em=means["em"].mean,
        kl_to_full=means["kl_to_full"].mean,
        top1_agreement=means["top1_agreement"].mean,
        gold_nll=means["gold_nll"].mean,
        speedup_vs_full=statistics.median(speedups) * handicap,
        n=len(measured),
        ttft_s=statistics.median(each.ttft_s for each in measured),
        computed_tokens=statistics.fmean(each.computed_tokens for each in measured),
        intervals={metric: (mean.low, mean.high) for metric, mean in means.items()},
        versus_full={metric: _paired(metric, measured, full) for metric in ("f1", "em", "gold_nll")},
    )


def _paired(metric: str, first: Sequence[Measurement], second: Sequence[Measurement]) -> Mean:
    pairs = zip(first, second, strict=True)
    return bootstrap_mean([getattr(one, metric) - getattr(other, metric) for one, other in pairs])
