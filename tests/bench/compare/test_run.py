"""Systems side by side, each in a process of its own, on a tiny model. How fast any is, no test says."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from ragblend.bench.compare.report import CompareReport, system_lines, workload_table
from ragblend.bench.compare.run import run
from ragblend.bench.compare.systems import SYSTEMS, System, systems_named
from ragblend.bench.compare.workloads import WORKLOADS
from ragblend.bench.data import Example, Passage
from ragblend.config import BlendSettings
from ragblend.errors import ConfigError, ContextOverflowError

OURS = ["ragblend", "transformers", "transformers-prefix"]
EXAMPLES = [
    Example(
        id=str(number),
        question=f"How long is part {number} covered?",
        answers=(f"For {number + 2} years.",),
        passages=tuple(
            Passage(name, f"The {name} number {number} is covered for {number + 2} years. It is made in {number}.")
            for name in ("nest", "blade", "cable")
        ),
    )
    for number in range(4)
]


def compared(model: Path, **settings) -> CompareReport:
    defaults = {
        "model": model,
        "systems": systems_named(OURS),
        "workloads": list(WORKLOADS),
        "context": 240,
        "chunk_tokens": 60,
        "prompts": 2,
        "answer_tokens": 5,
        "threads": 1,
        "dtype": "float32",
        "examples": EXAMPLES,
    }
    return run(**{**defaults, **settings})


@pytest.fixture(scope="module")
def report(model: Path) -> CompareReport:
    return compared(model, systems=[*systems_named(OURS), System("broken", "no_such_module")])


def test_every_system_runs_every_workload(report: CompareReport) -> None:
    assert [(row.workload, row.system) for row in report.rows] == [
        (workload, system) for workload in ("reordered", "conversation", "system", "fresh") for system in OURS
    ]
    for row in report.rows:
        assert row.n == 2
        assert row.ttft_s > 0
        assert row.peak_bytes > 10**7
    assert len(report.measurements) == 2 * len(report.rows)


def test_what_each_system_reuses(report: CompareReport) -> None:
    reused = {(row.workload, row.system): row.reused_tokens for row in report.rows}
    length = {row.workload: row.prompt_tokens for row in report.rows}
    for workload in length:
        assert reused[workload, "transformers"] == 0
    assert reused["reordered", "ragblend"] > 0.5 * length["reordered"]
    assert reused["reordered", "transformers-prefix"] < 0.5 * length["reordered"]
    for system in ("ragblend", "transformers-prefix"):
        assert reused["conversation", system] > 0.5 * length["conversation"]
        assert reused["system", system] > 0.5 * length["system"]
        assert reused["fresh", system] < 0.5 * length["fresh"]


def test_exact_reuse_answers_as_full_prefill_does(report: CompareReport) -> None:
    for row in report.rows:
        exact = row.system != "ragblend" or row.workload in ("system", "fresh")
        assert row.kl_to_full is not None
        assert row.same_answer is not None
        if exact:
            assert math.isclose(row.kl_to_full, 0.0, abs_tol=1e-5), row
            assert (row.same_answer, row.top1_agreement) == (1.0, 1.0), row


def test_a_system_that_cannot_start_is_absent_with_its_reason(report: CompareReport) -> None:
    *present, broken = report.systems
    assert all(system.present and not system.reason for system in present)
    assert not broken.present
    assert "no_such_module" in broken.reason
    *lines, last = system_lines(report)
    assert last == f"{broken.system}: absent: {broken.reason}"
    for system, line in zip(present, lines, strict=True):
        assert line.startswith(
            f"{system.system}: weights {system.weights}; of a repeated prompt {system.repeated_tokens:,} of"
        )


def test_caches_are_seen_to_work_before_anything_is_timed(report: CompareReport) -> None:
    repeated = {system.system: system.repeated_tokens for system in report.systems}
    length = report.systems[0].prompt_tokens
    assert repeated["transformers"] == 0
    assert repeated["transformers-prefix"] == length - 1
    assert length - 16 <= repeated["ragblend"] < length


def test_the_table_has_a_line_for_each_row_below_its_workload(report: CompareReport) -> None:
    columns, cells = workload_table(report)
    assert {len(line) for line in cells} == {len(columns)}
    workloads = list(dict.fromkeys(row.workload for row in report.rows))
    assert [line[0] for line in cells if not line[0].startswith(" ")] == workloads
    assert [line[0] for line in cells if line[0].startswith(" ")] == [f" {row.system}" for row in report.rows]


def test_without_transformers_nothing_is_compared_with(model: Path) -> None:
    systems = [SYSTEMS["ragblend"], System("llama.cpp", "llama_cpp", "gguf")]
    alone = compared(model, systems=systems, workloads=["fresh"], prompts=1, blend=BlendSettings("none", 0.0))
    [row] = alone.rows
    assert (row.speedup, row.same_answer, row.kl_to_full) == (None, None, None)
    assert alone.systems[0].facts["policy"] == "none, ratio 0"
    assert "name the model by its .gguf file" in alone.systems[1].reason


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"prompts": 0}, "prompts must be at least 1"),
        ({"answer_tokens": 0}, "answer tokens must be at least 1"),
        ({"context": 0}, "at least 1 token, got 0"),
        ({"workloads": ["best"]}, "unknown workload 'best'"),
        ({"context": 10**6}, "needs that much text"),
    ],
)
def test_refused_before_any_system_is_started(model: Path, change: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        compared(model, systems=[System("broken", "no_such_module")], **change)


def test_prompts_that_the_model_cannot_take_are_refused(model: Path) -> None:
    with pytest.raises(ContextOverflowError):
        compared(model, context=600, answer_tokens=500)


def test_systems_by_name() -> None:
    assert [system.name for system in systems_named(["vllm", " ragblend"])] == ["vllm", "ragblend"]
    with pytest.raises(ConfigError, match="unknown system 'sglang'"):
        systems_named(["sglang"])
    with pytest.raises(ConfigError, match="named twice"):
        systems_named(["vllm", "vllm"])
