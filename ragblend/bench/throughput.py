"""``ragblend bench throughput``: how many questions a second one engine answers while nobody waits too long.

A stream of questions falls on the example corpus by Zipf's law. Every request is answered once, one after the other,
and timed. An engine answers one request at a time best, so how long each would have waited at a given rate follows
from those times exactly (Lindley's recursion): the queue is worked out, not run again for every rate.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ragblend.bench.data import handbook_folder, handbook_questions
from ragblend.bench.machine import Machine, describe_machine
from ragblend.bench.queueing import PERCENTILE, Served, first_token_seconds, highest_rate, unit_arrivals, zipf_stream
from ragblend.bench.variants import Variant, as_fixed_variants
from ragblend.config import GenerationSettings, Ratio, fixed_ratio, require
from ragblend.engine import Engine
from ragblend.errors import ConfigError
from ragblend.library.library import Library


@dataclass(frozen=True, slots=True)
class ThroughputRow:
    """A policy at a rate of arrivals. ttft_p50_s, ttft_p95_s: from arrival to the first token, waiting included."""

    policy: str
    ratio: float
    requests_per_s: float
    ttft_p50_s: float
    ttft_p95_s: float


@dataclass(frozen=True, slots=True)
class ThroughputBound:
    """The highest rate at which 95% of the requests get their first token within ``bound_s``; 0 where none does.

    service_s: mean seconds of a request without waiting. computed_tokens: mean rows computed.
    """

    policy: str
    ratio: float
    bound_s: float
    requests_per_s: float
    service_s: float
    computed_tokens: float


@dataclass(frozen=True)
class ThroughputReport:
    """served: each request's times, by policy and ratio."""

    rows: tuple[ThroughputRow, ...]
    bounds: tuple[ThroughputBound, ...]
    requests: int
    distinct_questions: int
    exponent: float
    chunks_per_question: int
    answer_tokens: int
    machine: Machine
    served: dict[str, tuple[Served, ...]]


def run(
    engine: Engine,
    *,
    policies: Sequence[str],
    ratio: Ratio,
    requests: int = 200,
    exponent: float = 1.0,
    k: int = 6,
    answer_tokens: int = 16,
    rates: Sequence[float] = (0.25, 0.5, 1.0, 2.0, 4.0),
    bounds_s: Sequence[float] = (1.0, 2.0, 4.0),
    documents: Path | None = None,
    questions: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ThroughputReport:
    """Serve the same stream under each policy (a name, or ``name@ratio``), each from an empty prefix cache.

    rates: requests a second. bounds_s: seconds to the first token. documents, questions: None for the example
    handbook and the questions about it. progress: called with requests done and total.
    Raises ConfigError (settings, no example corpus).
    """
    require(requests >= 1, f"requests must be at least 1, got {requests}")
    require(answer_tokens >= 1, f"answer tokens must be at least 1, got {answer_tokens}")
    require(k >= 1, f"k must be at least 1, got {k}")
    require(exponent >= 0, f"exponent must not be negative, got {exponent}")
    require(bool(rates) and min(rates) > 0, "rates must be above 0")
    require(bool(bounds_s) and min(bounds_s) > 0, "bounds must be above 0")
    variants = as_fixed_variants(policies, ratio)
    ratios = [fixed_ratio(variant.ratio) for variant in variants]
    if questions is None:
        questions = [question for question, _ in handbook_questions()]
    if not questions:
        raise ConfigError("there is no example handbook here: run this from a checkout of the repository")
    asked = zipf_stream(questions, requests, exponent)
    served: list[tuple[Served, ...]] = []
    with (
        tempfile.TemporaryDirectory(prefix="ragblend-throughput-") as folder,
        Library.open(Path(folder) / "handbook.rag", engine=engine) as library,
    ):
        library.add([documents or handbook_folder()])
        for variant in variants:
            library.prefixes.clear()
            answers: list[Served] = []
            for question in asked:
                answers.append(_serve(library, question, variant, k, answer_tokens))
                if progress is not None:
                    progress(len(served) * requests + len(answers), len(variants) * requests)
            served.append(tuple(answers))
    arrivals = unit_arrivals(requests)
    rows: list[ThroughputRow] = []
    bounds: list[ThroughputBound] = []
    for variant, share, answered in zip(variants, ratios, served, strict=True):
        for rate in rates:
            middle, late = np.percentile(first_token_seconds(arrivals / rate, answered), [50, PERCENTILE])
            rows.append(ThroughputRow(variant.label, share, rate, float(middle), float(late)))
        service_s = float(np.mean([each.total_s for each in answered]))
        computed = float(np.mean([each.computed_tokens for each in answered]))
        for bound in bounds_s:
            rate = highest_rate(arrivals, answered, bound)
            bounds.append(ThroughputBound(variant.label, share, bound, rate, service_s, computed))
    return ThroughputReport(
        rows=tuple(rows),
        bounds=tuple(bounds),
        requests=requests,
        distinct_questions=len(set(asked)),
        exponent=exponent,
        chunks_per_question=k,
        answer_tokens=answer_tokens,
        machine=describe_machine(engine),
        served={f"{v.label}@{v.ratio}": answered for v, answered in zip(variants, served, strict=True)},
    )


def _serve(library: Library, question: str, variant: Variant, k: int, answer_tokens: int) -> Served:
    began = time.perf_counter()
    answer = library.ask(
        question,
        k,
        policy=variant.policy.name,
        ratio=variant.ratio,
        generation=GenerationSettings(max_tokens=answer_tokens),
    )
    total_s = time.perf_counter() - began  # with what is kept after the answer
    timings = answer.timings
    return Served(question, timings.retrieve_s + timings.ttft_s, total_s, answer.usage.computed_tokens)
