"""docs/benchmarks.md says what its JSON files say, and of what is missing that it is missing."""

from __future__ import annotations

import importlib.util
import json
import shlex
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import typer.main

from ragblend.bench.compare.report import CompareReport, CompareRow, CompareSettings, SystemReport
from ragblend.bench.growth.library import LibraryRow
from ragblend.bench.growth.requests import ProcessRow, RequestRow
from ragblend.bench.growth.run import GrowthReport, plot
from ragblend.bench.machine import describe_device
from ragblend.bench.throughput import ThroughputBound, ThroughputReport, ThroughputRow
from ragblend.cli.app import app

DOCS = Path(__file__).parents[1] / "docs"
_spec = importlib.util.spec_from_file_location("write_benchmarks", DOCS / "write_benchmarks.py")
write_benchmarks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(write_benchmarks)

MACHINE = describe_device(torch.device("cpu"), "tiny", torch.float32)
GROWTH = GrowthReport(
    library=(LibraryRow(100, 500, 0.01, 0.02, 0.003, 0.0001, 10**7, 10**6, 10**6),),
    contexts=(RequestRow("ragblend", 1024, 4, 0.21, 10**9, 2.0), RequestRow("transformers", 1024, 4, 0.9, 10**9, 0.0)),
    chunks=(RequestRow("ragblend", 4096, 32, 0.61, 10**9, 2.0),),
    processes=(ProcessRow(1, 2, 0.4, 2.1, 10**9), ProcessRow(2, 1, 0.7, 2.5, 2 * 10**9)),
    note="shared with other work",
    machine=MACHINE,
)
COMPARE = CompareReport(
    rows=(
        CompareRow("fresh", "ragblend", 1.234, 1.01, 20.5, 10**9, 0.0, 4000.0, 25.0, 1.0, 1.0, 0.0012, 1.0, 5),
        CompareRow("fresh", "vllm", 2.345, None, None, 10**9, 0.0, 4000.0, 0.0, None, None, None, None, 5),
    ),
    systems=(
        SystemReport("ragblend", True, "", "bfloat16", {"version": "1"}, 4090, 4100),
        SystemReport("vllm", False, "pip install failed: no | space", "bfloat16", {}, 0, 0),
    ),
    settings=CompareSettings(4096, 256, 5, 32, 2),
    machine=MACHINE,
    measurements=(),
)
THROUGHPUT = ThroughputReport(
    (ThroughputRow("query", 0.1, 0.5, 0.31, 0.92),),
    (ThroughputBound("query", 0.1, 1.0, 1.75, 0.5, 130.0),),
    200,
    60,
    1.0,
    6,
    16,
    MACHINE,
    {},
)


def test_the_page_is_made_from_its_files() -> None:
    assert (DOCS / "benchmarks.md").read_text(encoding="utf-8") == write_benchmarks.page_of(DOCS / "benchmarks"), (
        "run make benchmarks-page"
    )


def test_what_was_not_measured_says_so(tmp_path: Path) -> None:
    page = write_benchmarks.page_of(tmp_path)
    assert page.count("Not measured on a quiet machine yet") == len(write_benchmarks.SECTIONS)


@pytest.mark.parametrize(
    ("file", "report", "cells"),
    [
        (
            "growth.json",
            GROWTH,
            ["| 100 | 500 | 10.0 ms |", "| 2 | 1 | 0.700 s | 2.50 |", "shared with other"],
        ),
        (
            "compare.json",
            COMPARE,
            ["| 1.234 s | 1.01x | 20.5 |", "| 2.345 s | - | - |", "absent: pip install failed"],
        ),
        ("throughput.json", THROUGHPUT, ["| query | 0.1 | 0.5 | 0.31 s | 0.92 s |", "| 1 s | 1.75 |"]),
    ],
)
def test_a_report_becomes_tables_with_the_machine(tmp_path: Path, file: str, report, cells: list[str]) -> None:
    (tmp_path / file).write_text(json.dumps(asdict(report)))
    (tmp_path / file.replace(".json", "-curve.png")).touch()
    page = write_benchmarks.page_of(tmp_path)
    assert all(cell in page for cell in cells), page
    assert f"(benchmarks/{file.removesuffix('.json')}-curve.png)" in page
    assert f"at commit {MACHINE.commit}; {MACHINE.date}" in page


@pytest.mark.parametrize("section", write_benchmarks.SECTIONS, ids=lambda section: section.file)
def test_the_commands_in_it_exist(section) -> None:
    program, group, *words = shlex.split(section.command)
    assert (program, group) == ("ragblend", "bench")
    command = typer.main.get_command(app).commands["bench"].commands[words[0]]
    known = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_every_curve_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    drawn = plot(GROWTH, tmp_path / "plots")
    assert [path.stem for path in drawn] == [
        "growth-library-time",
        "growth-library-size",
        "growth-context",
        "growth-chunks",
        "growth-processes",
    ]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
