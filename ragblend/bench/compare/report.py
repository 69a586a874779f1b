"""From single answers to the rows of ``ragblend bench compare``."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from ragblend.bench.machine import Machine
from ragblend.bench.metrics import f1


@dataclass(frozen=True, slots=True)
class Measurement:
    """One system's answer to one prompt. ``kl_to_full`` and ``top1_agreement`` are None where it gives no logits.

    full_answer: what transformers' full prefill answered; None where it was not compared.
    """

    workload: str
    system: str
    prompt: int
    prompt_tokens: int
    reused_tokens: int
    tokens: int
    ttft_s: float
    total_s: float
    answer: str
    full_answer: str | None
    kl_to_full: float | None
    top1_agreement: float | None


@dataclass(frozen=True, slots=True)
class CompareRow:
    """One system on one workload. Seconds and speed-ups are medians over the prompts, the rest means.

    speedup: transformers' time to the first token by the system's, prompt by prompt. tokens_per_s: after the
    first token, all prompts together; None where every answer was one token. peak_bytes: of its process.
    prepare_s: what indexing the documents took, once. same_answer: share of answers that are word for word
    full prefill's; answer_f1: F1 of their words. None where there was nothing to compare with.
    """

    workload: str
    system: str
    ttft_s: float
    speedup: float | None
    tokens_per_s: float | None
    peak_bytes: int
    prepare_s: float
    prompt_tokens: float
    reused_tokens: float
    same_answer: float | None
    answer_f1: float | None
    kl_to_full: float | None
    top1_agreement: float | None
    n: int


@dataclass(frozen=True, slots=True)
class SystemReport:
    """facts: what the system says of itself. repeated: of the same prompt asked twice, the tokens it reused the
    second time; prompt_tokens are what it had. reason: why it is absent; empty where it is not.
    """

    system: str
    present: bool
    reason: str
    weights: str
    facts: dict[str, str]
    repeated_tokens: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class CompareSettings:
    context: int
    chunk_tokens: int
    prompts: int
    answer_tokens: int
    threads: int


@dataclass(frozen=True)
class CompareReport:
    rows: tuple[CompareRow, ...]
    systems: tuple[SystemReport, ...]
    settings: CompareSettings
    machine: Machine
    measurements: tuple[Measurement, ...]


Table = tuple[Sequence[str], Sequence[Sequence[str]]]
_MEASURED = ("system", "first\ntoken\nin s", "times\nsooner", "tokens\n/s", "memory", "reused", "same", "F1", "KL")


def workload_table(report: CompareReport) -> Table:
    """Columns and cells of the rows, below the name of their workload. They fit a terminal of 80 columns."""
    cells: list[Sequence[str]] = []
    for workload, rows in groupby(report.rows, key=lambda row: row.workload):
        cells.append([workload, *[""] * (len(_MEASURED) - 1)])
        cells += [
            (
                f" {row.system}",
                _short(row.ttft_s, 4),
                "-" if row.speedup is None else f"{_short(row.speedup, 3)}x",
                _number(row.tokens_per_s, ".1f"),
                f"{row.peak_bytes / 1e9:.1f} GB",
                f"{row.reused_tokens / row.prompt_tokens:.0%}",
                _number(row.same_answer, ".2f"),
                _number(row.answer_f1, ".2f"),
                _number(row.kl_to_full, ".4f"),
            )
            for row in rows
        ]
    return _MEASURED, cells


def system_lines(report: CompareReport) -> Iterator[str]:
    """What each system is, or why it is absent."""
    for system in report.systems:
        if not system.present:
            yield f"{system.system}: absent: {system.reason}"
            continue
        facts = "; ".join(f"{name} {value}" for name, value in system.facts.items())
        repeated = f"of a repeated prompt {system.repeated_tokens:,} of {system.prompt_tokens:,} tokens reused"
        yield f"{system.system}: weights {system.weights}; {repeated}; {facts}"


def make_row(
    measured: Sequence[Measurement], full: Sequence[Measurement] | None, peak_bytes: int, prepare_s: float
) -> CompareRow:
    """Sum up one system on one workload; ``full`` is transformers' full prefill on the same prompts."""
    decoding = sum(each.total_s - each.ttft_s for each in measured)
    after_first = sum(each.tokens - 1 for each in measured)
    compared = [(each.answer, each.full_answer) for each in measured if each.full_answer is not None]
    return CompareRow(
        workload=measured[0].workload,
        system=measured[0].system,
        ttft_s=statistics.median(each.ttft_s for each in measured),
        speedup=statistics.median(own.ttft_s / each.ttft_s for own, each in zip(full, measured, strict=True))
        if full
        else None,
        tokens_per_s=after_first / decoding if after_first and decoding else None,
        peak_bytes=peak_bytes,
        prepare_s=prepare_s,
        prompt_tokens=statistics.fmean(each.prompt_tokens for each in measured),
        reused_tokens=statistics.fmean(each.reused_tokens for each in measured),
        same_answer=_mean([float(answer == right) for answer, right in compared]),
        answer_f1=_mean([f1(answer, [right]) for answer, right in compared]),
        kl_to_full=_mean([each.kl_to_full for each in measured]),
        top1_agreement=_mean([each.top1_agreement for each in measured]),
        n=len(measured),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return statistics.fmean(given) if given else None


def _short(value: float, digits: int) -> str:
    """So many digits, with as few before the point as it has."""
    return f"{value:.{max(0, digits - len(str(int(value))))}f}"


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else f"{value:{form}}{unit}"
