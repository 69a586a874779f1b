"""What ``bench quality`` reports: its invariants on a tiny model, and what it makes of settings and data."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from ragblend.bench import quality
from ragblend.bench.report import QualityReport
from ragblend.bench.variants import Variant
from ragblend.blend.policies.query import QueryAttention
from ragblend.config import GenerationSettings
from ragblend.engine import Engine
from ragblend.errors import ConfigError, ContextOverflowError, PathNotFoundError
from ragblend.prompt import Segment
from tests import tiny
from tests.bench.conftest import write_questions

CONTRACT = ("policy", "ratio", "f1", "em", "kl_to_full", "top1_agreement", "gold_nll", "speedup_vs_full", "n")


@pytest.fixture(scope="module")
def report(tiny_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> QualityReport:
    data = write_questions(tmp_path_factory.mktemp("questions"))
    own = Variant("middle", QueryAttention(1 / 3, 2 / 3), 0.25)
    policies = ["none", "query@1", "hkvd@1", "full", own]
    return quality.run(tiny_engine, data=data, policies=policies, ratio=0.25, answer_tokens=8, passage_tokens=64)


def test_rows_carry_the_contracts_fields(report: QualityReport) -> None:
    assert [(row.policy, row.ratio) for row in report.rows] == [
        ("full", 1.0),
        ("none", 0.25),
        ("query", 1.0),
        ("hkvd", 1.0),
        ("middle", 0.25),
    ]
    assert set(CONTRACT) <= {field.name for field in dataclasses.fields(report.rows[0])}
    for row in report.rows:
        assert row.n == 3
        assert 0 <= row.em <= row.f1 <= 1
        assert 0 <= row.top1_agreement <= 1
        assert row.gold_nll > 0
        assert row.speedup_vs_full > 0
        assert all(low <= getattr(row, metric) <= high for metric, (low, high) in row.intervals.items())


def test_full_prefill_is_itself(report: QualityReport) -> None:
    full = report.rows[0]
    assert (full.kl_to_full, full.top1_agreement) == (0.0, 1.0)
    assert full.versus_full["f1"].mean == full.versus_full["gold_nll"].mean == 0.0


@pytest.mark.parametrize("policy", ["query", "hkvd"])
def test_recomputing_everything_is_full_prefill(report: QualityReport, policy: str) -> None:
    full = report.rows[0]
    row = next(row for row in report.rows if row.policy == policy)
    assert row.kl_to_full == pytest.approx(0.0, abs=1e-5)
    assert row.top1_agreement == 1.0
    assert row.gold_nll == pytest.approx(full.gold_nll, abs=1e-4)
    answers = {each.id: each.answer for each in report.measurements if each.policy == "full"}
    assert all(each.answer == answers[each.id] for each in report.measurements if each.policy == policy)


def test_reuse_without_recompute_is_not(report: QualityReport) -> None:
    none = report.rows[1]
    assert none.kl_to_full > 1e-3
    assert none.computed_tokens < report.rows[0].computed_tokens / 2


def test_both_full_prefills_agree_up_to_rounding(report: QualityReport) -> None:
    assert report.rounding_kl == pytest.approx(0.0, abs=1e-5)


def test_differences_are_paired(report: QualityReport) -> None:
    assert report.difference("kl_to_full", ("none", 0.25), ("none", 0.25)).high == 0.0
    worse = report.difference("kl_to_full", ("none", 0.25), ("query", 1.0))
    assert worse.mean == pytest.approx(report.rows[1].kl_to_full - report.rows[2].kl_to_full)
    with pytest.raises(ConfigError, match="no row none at ratio 1"):
        report.difference("f1", ("none", 1.0), ("none", 0.25))
    with pytest.raises(ConfigError, match="unknown metric 'rouge'"):
        report.difference("rouge", ("none", 0.25), ("none", 0.25))


def test_runs_repeat(tiny_engine: Engine, data: Path, report: QualityReport) -> None:
    again = quality.run(tiny_engine, data=data, policies=["none"], ratio=0.25, answer_tokens=8, passage_tokens=64)

    def results(report: QualityReport) -> list[tuple[object, ...]]:
        rows = [row for row in report.rows if row.policy in ("full", "none")]
        return [(row.f1, row.em, row.kl_to_full, row.top1_agreement, row.gold_nll) for row in rows]

    assert results(again) == results(report)


def test_the_answer_is_what_the_engine_says(tiny_engine: Engine, data: Path) -> None:
    wording = tiny_engine.template.question
    [measured] = quality.run(
        tiny_engine, data=data, policies=["full"], limit=1, answer_tokens=8, question=wording
    ).measurements
    example = json.loads(data.read_text().splitlines()[0])
    chunks = [tiny_engine.template.chunk_ids(each["title"], "", each["text"]) for each in example["passages"]]
    prompt = tiny_engine.template.build([Segment("chunk", ids) for ids in chunks], example["question"])
    answer = tiny_engine.generate(prompt, generation=GenerationSettings(max_tokens=8))
    assert measured.answer == answer.text


def test_long_passages_are_cut_and_long_examples_left_out(tiny_engine: Engine, data: Path) -> None:
    lines = data.read_text().splitlines()
    long = json.loads(lines[1])
    long["passages"] *= 4
    data.write_text("\n".join([lines[0], json.dumps(long)]))
    report = quality.run(tiny_engine, data=data, policies=["none"], answer_tokens=8, passage_tokens=20)
    assert report.settings.too_long == ("q1",)
    assert [row.n for row in report.rows] == [1, 1]

    data.write_text(json.dumps(long))
    with pytest.raises(ContextOverflowError, match="model's context is 512"):
        quality.run(tiny_engine, data=data, policies=["none"], answer_tokens=8)


def test_a_family_that_sdpa_cannot_compute(data: Path) -> None:
    engine = Engine.from_model(tiny.family("gpt-oss"), tiny.tokenizer())
    report = quality.run(engine, data=data, policies=["none"], limit=1, answer_tokens=4, baseline_questions=1)
    assert report.rounding_kl == pytest.approx(0.0, abs=1e-4)
    assert report.baseline.winner in ("ragblend full", "transformers eager")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"policies": []}, "at least one policy"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"ratio": 1.5}, "between 0 and 1"),
        ({"answer_tokens": 0}, "answer tokens must be at least 1"),
        ({"passage_tokens": 0}, "passage tokens must be at least 1"),
        ({"baseline_questions": 0}, "baseline questions must be at least 1"),
        ({"question": "Answer!"}, r"must contain \{question\}"),
    ],
)
def test_refused(tiny_engine: Engine, data: Path, change: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        quality.run(tiny_engine, **({"data": data, "policies": ["none"]} | change))


def test_the_data_must_be_there(tiny_engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(PathNotFoundError):
        quality.run(tiny_engine, data=tmp_path / "missing.jsonl", policies=["none"])
