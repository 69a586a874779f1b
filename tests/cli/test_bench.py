"""``ragblend bench``: rows of the design's JSON, and mistakes noticed before a model is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

TTFT_ROW = {
    "context",
    "policy",
    "ratio",
    "ttft_s",
    "speedup_vs_full",
    "computed_tokens",
    "load_s",
    "of_bound",
    "of_floor",
}
QUALITY_ROW = {
    "policy",
    "ratio",
    "f1",
    "em",
    "kl_to_full",
    "top1_agreement",
    "gold_nll",
    "speedup_vs_full",
    "n",
}

STORE_ROW = {"codec", "bytes_per_token", "share_of_bf16", "write_mb_s", "read_mb_s", "place_s"}
FIDELITY_ROW = {"codec", "policy", "ratio", "f1", "em", "kl_to_full", "top1_agreement", "gold_nll", "n", "versus_raw"}
COMPARE_ROW = {
    "workload",
    "system",
    "ttft_s",
    "speedup",
    "tokens_per_s",
    "peak_bytes",
    "reused_tokens",
    "same_answer",
    "answer_f1",
    "kl_to_full",
    "n",
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    passages = [{"title": name, "text": f"The {name} of the robot lasts two years."} for name in ("nest", "blade")]
    line = {"id": "1", "question": "How long?", "answers": ["two years"], "passages": passages}
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps({**line, "id": str(number)}) + "\n" for number in range(2)))
    return path


def test_ttft(run: Run, model: Path) -> None:
    arguments = ("bench", "ttft", "--model", model, "--contexts", "64,96", "--chunk-tokens", 32, "--repeats", 1)
    result = run(*arguments, "--policies", "full,query@0.5,none", "--ratio", 0.1, "--json")
    assert (result.status, result.err) == (0, "")
    rows = result.json["rows"]
    assert all(row.keys() >= TTFT_ROW for row in rows)
    assert [(row["context"], row["policy"]) for row in rows] == [
        (context, policy) for context in (64, 96) for policy in ("full", "query", "none")
    ]
    assert rows[1]["ratio"] == 0.5

    as_text = run(*arguments, "--policies", "none")
    assert as_text.status == 0
    assert "full prefill at 64: " in as_text.out

    refused = run(*arguments, "--codec", "int3")
    assert refused.status == 2
    assert "codec must be one of raw" in refused.err


def test_quality(run: Run, model: Path, data: Path) -> None:
    arguments = ("bench", "quality", "--model", model, "--data", data)
    result = run(*arguments, "--policies", "none,hkvd", "--limit", 1, "--json")
    assert (result.status, result.err) == (0, "")
    rows = result.json["rows"]
    assert all(row.keys() >= QUALITY_ROW for row in rows)
    assert [row["policy"] for row in rows] == ["full", "none", "hkvd"]
    assert [row["n"] for row in rows] == [1, 1, 1]

    as_text = run(*arguments, "--policies", "none")
    assert as_text.status == 0
    assert "KL to full" in as_text.out


def test_compare(run: Run, model: Path, data: Path) -> None:
    arguments = ("bench", "compare", "--model", model, "--data", data, "--context", 60, "--chunk-tokens", 30)
    small = ("--workloads", "reordered", "--repeats", 1, "--answer-tokens", 3, "--threads", 1)
    result = run(*arguments, *small, "--peers", "ragblend,transformers", "--json")
    assert result.status == 0
    assert "transformers: installing and starting" in result.err
    rows = result.json["rows"]
    assert [row["system"] for row in rows] == ["ragblend", "transformers"]
    assert all(row.keys() >= COMPARE_ROW for row in rows)
    assert result.json["machine"]["threads"] == 1

    as_text = run(*arguments, *small, "--peers", "llama.cpp")
    assert as_text.status == 0
    assert "absent: it reads GGUF files" in " ".join(as_text.out.split())


def test_growth_of_a_library_alone_needs_no_model(run: Run, no_model: None, tmp_path: Path) -> None:
    alone = ("bench", "growth", "--contexts=", "--chunks=", "--processes=", "--windows", 1)
    result = run(*alone, "--library", "20", "--plots", tmp_path / "plots", "--note", "busy", "--json")
    assert (result.status, result.err) == (0, "")
    [row] = result.json["library"]
    assert (row["chunks"], row["vectors"], result.json["note"]) == (20, 20, "busy")
    assert (tmp_path / "plots" / "growth-library-time.png").is_file()


def test_tasks(run: Run, no_model: None, tmp_path: Path) -> None:
    out = tmp_path / "tasks.jsonl"
    result = run("bench", "tasks", "--out", out, "--count", 2, "--json")
    assert (result.status, result.err) == (0, "")
    assert result.json["examples"] == len(out.read_text().splitlines()) == 2 * len(result.json["kinds"])
    assert "12 questions in" in run("bench", "tasks", "--out", out, "--count", 2).out


def test_store(run: Run, model: Path, data: Path) -> None:
    small = ("--tokens", 96, "--chunk-tokens", 32, "--repeats", 1)
    arguments = ("bench", "store", "--model", model, "--codecs", "raw,int4,int8+zstd", *small)
    result = run(*arguments, "--data", data, "--policies", "none", "--json")
    assert (result.status, result.err) == (0, "")
    assert all(row.keys() >= STORE_ROW for row in result.json["rows"])
    assert [row["codec"] for row in result.json["rows"]] == ["raw", "int4", "int8+zstd"]
    assert all(row.keys() >= FIDELITY_ROW for row in result.json["fidelity"])
    assert [row["codec"] for row in result.json["fidelity"]] == ["", "raw", "int4", "int8"]

    as_text = run(*arguments)
    assert as_text.status == 0
    assert "of bf16" in as_text.out
    assert "KL to full" not in as_text.out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("ttft --contexts 64,many", "contexts must be whole numbers"),
        ("ttft --policies best", "unknown policy 'best'"),
        ("ttft --ratio 2", "ratio must be auto or between 0 and 1"),
        ("ttft --repeats 0", "repeats must be at least 1"),
        ("ttft --storage-mb-s 0", "storage-mb-s"),
        ("ttft --data missing.jsonl", "missing.jsonl: no such file"),
        ("quality --data {data} --ratio much", "ratio must be auto or between 0 and 1"),
        ("quality --data {data} --ratio auto", "with auto every request has another ratio"),
        ("quality --data {data} --policies query@auto", "with auto every request has another ratio"),
        ("store --data {data} --policies none,query@auto", "with auto every request has another ratio"),
        ("throughput --policies prefix,query@auto", "with auto every request has another ratio"),
        ("quality", "Missing option '--data'"),
        ("quality --data missing.jsonl", "missing.jsonl: no such file"),
        ("quality --data {data} --limit 0", "limit must be at least 1"),
        ("compare --peers sglang", "unknown system 'sglang'"),
        ("compare --workloads best", "unknown workload 'best'"),
        ("compare --repeats 0", "repeats must be at least 1"),
        ("compare --threads 0", "threads must be at least 1"),
        ("compare --policy best", "unknown policy 'best'"),
        ("compare --data missing.jsonl", "missing.jsonl: no such file"),
        ("growth --library 10,many", "must be whole numbers"),
        ("growth --library= --contexts= --chunks= --processes=", "nothing to measure"),
        ("growth --repeats 0", "repeats must be at least 1, got 0"),
        ("growth --contexts=-4", "a context must have at least 1 token, got -4"),
        ("growth --chunks 0", "chunks must be 1 to 4096, got 0"),
        ("growth --processes 0", "processes must be at least 1, got 0"),
        ("growth --dtype x", "unknown dtype 'x'"),
        ("throughput -k 0", "k must be at least 1, got 0"),
        ("growth --library 10 --plots /dev/null/plots", "cannot be made"),
        ("throughput --answer-tokens 0", "answer tokens must be at least 1, got 0"),
        ("growth --library 0 --contexts= --chunks= --processes=", "at least 1 chunk, got 0"),
        ("throughput --requests 0", "requests must be at least 1"),
        ("throughput --policies best", "unknown policy 'best'"),
        ("tasks", "Missing option '--out'"),
        ("tasks --out {data} --kinds riddle", "unknown kind 'riddle'"),
        ("store --codecs raw,int2", "the codec must be one of raw, "),
        ("store --codecs raw,raw", "a codec is named twice"),
        ("store --policies best", "unknown policy 'best'"),
        ("store --data missing.jsonl", "missing.jsonl: no such file"),
        ("store --repeats 0", "repeats must be at least 1"),
        ("best", "No such command 'best'"),
    ],
)
def test_mistakes(run: Run, data: Path, no_model: None, command: str, message: str) -> None:
    result = run("bench", *command.format(data=data).split())
    assert result.status == 2
    assert message in result.err
    assert result.err.count("\n") == 1


def test_kernels(run: Run) -> None:
    """On a CPU it measures torch's operations, in a shape of a size for that."""
    arguments = ("bench", "kernels", "--models", "tiny", "--contexts", "32", "--repeats", 1, "--dtype", "float32")
    result = run(*arguments, "--json")
    assert (result.status, result.err) == (0, "")
    assert result.json["kernels"] == "torch"
    assert all(row["correct"] and row["seconds"] > 0 for row in result.json["rows"])

    as_text = run(*arguments)
    assert "torch kernels; at most: copy" in as_text.out
    refused = run(*arguments, "--kernels", "triton")
    assert (refused.status, "need a GPU" in refused.err) == (1, True)
