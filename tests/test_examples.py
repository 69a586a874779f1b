"""The scripts in examples/, each run as a reader would run it, on the embedded model and little text."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_model

EXAMPLES = Path(__file__).parent.parent / "examples"
WARRANTY = EXAMPLES / "handbook" / "warranty.md"
TESTED = {
    "prefix_cache.py",
    "ask_handbook.py",
    "compare_policies.py",
    "langchain_one_line.py",
    "langchain_stream.py",
    "own_prompt.py",
    "stream_answer.py",
}


def run(script: str, folder: Path, *arguments: object) -> str:
    """What the script prints when it is run in ``folder``. Warnings are errors there too."""
    command = [sys.executable, "-W", "error", EXAMPLES / script, *arguments]
    finished = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_every_script_is_run_below() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == TESTED


def test_ask_handbook_prints_answer_sources_usage_and_timings(tmp_path: Path) -> None:
    printed = run("ask_handbook.py", tmp_path, "--documents", WARRANTY, "-k", 2, "--max-tokens", 12)
    assert re.match(r"documents: 1, chunks: \d+, tokens: 1,\d{3}\n", printed)
    question, answer = printed.split("\n\n")[1].splitlines()
    assert question == "How long does the warranty of the Wren 3 last?"
    assert "warranty" in answer
    assert printed.count("warranty.md, chunk ") == 2
    cached, recomputed = map(int, re.search(r"cached_tokens=(\d+), recomputed_tokens=(\d+)", printed).groups())
    assert 0 < recomputed < cached
    assert "Timings(retrieve_s=" in printed
    assert (tmp_path / "handbook.rag" / "catalogue.sqlite").is_file()


def test_stream_answer_stops_where_it_is_told_to(tmp_path: Path) -> None:
    printed = run("stream_answer.py", tmp_path, "--documents", WARRANTY, "--pieces", 3)
    answer, _, summary = printed.partition("\n\n")
    assert answer.strip()
    assert re.match(r"cancelled after [345] tokens\n", summary)  # a piece may need more than one token


def test_compare_policies_prints_a_row_for_each(tmp_path: Path) -> None:
    printed = run("compare_policies.py", tmp_path, "--documents", WARRANTY, "--max-tokens", 4)
    rows = re.findall(r"^(\w+) +[\d.]+ s +([\d,]+) of ([\d,]+)  (.+)$", printed, re.MULTILINE)
    assert [row[0] for row in rows] == ["full", "none", "hkvd", "query"]
    computed = {policy: int(count.replace(",", "")) for policy, count, _, _ in rows}
    (prompt_tokens,) = {int(total.replace(",", "")) for _, _, total, _ in rows}
    assert computed["none"] < computed["hkvd"] == computed["query"] < computed["full"] == prompt_tokens
    assert all(answer for *_, answer in rows)


def test_own_prompt_finds_both_notes_in_both_orders(tmp_path: Path) -> None:
    printed = run("own_prompt.py", tmp_path)
    first, second = printed.strip().split("\n\n")
    assert "Thursday" in first
    assert "door" in second
    reused = [int(re.search(r"(\d+) tokens reused", block)[1]) for block in (first, second)]
    assert reused[0] == reused[1] > 0


def test_langchain_one_line_reuses_every_document_in_both_orders(tmp_path: Path) -> None:
    documents = tmp_path / "warranty.md"
    documents.write_text(WARRANTY.read_text()[:3000])
    printed = run("langchain_one_line.py", tmp_path, "--documents", documents, "-k", 3, "--max-tokens", 4)
    shares = [int(share) for share in re.findall(r"(\d+)% of the context reused", printed)]
    assert len(shares) == 4
    assert min(shares) >= 95


def test_langchain_stream_prints_text_then_sources(tmp_path: Path) -> None:
    printed = run("langchain_stream.py", tmp_path, "--documents", WARRANTY, "-k", 2, "--max-tokens", 8)
    answer, _, summary = printed.partition("\n\n")
    assert answer.strip()
    assert re.match(r"2 of 2 chunks from the store, first token [\d.]+ s\n", summary)
    assert summary.count("warranty.md, chunk ") == 2


def test_prefix_cache_reuses_the_system_prompt_also_after_a_restart(tmp_path: Path) -> None:
    printed = run("prefix_cache.py", tmp_path, "--tokens", 300, "--questions", 2)
    rows = re.findall(r"^ +(\d+) +[\d.]+ s +[\d.]+ s +[\d.]+ s +([\d,]+)$", printed, re.MULTILINE)
    assert [row[0] for row in rows] == ["1", "2"]
    assert int(rows[1][1]) >= 200
    counts = re.search(r"([\d,]+) of ([\d,]+) prompt tokens", printed).groups()
    read, total = (int(count.replace(",", "")) for count in counts)
    assert 0.6 * total < read < total
