"""``ragblend ask``: the JSON of the design, streamed text, comparison with full prefill."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ragblend.cli.ask import as_json, timing_line
from ragblend.config import BlendSettings
from ragblend.results import Answer, Source, Timings, Usage
from tests.cli.conftest import Run

NUMBER = (int, float)
USAGE = {
    "prompt_tokens",
    "cached_tokens",
    "recomputed_tokens",
    "computed_tokens",
    "cache_creation_tokens",
    "completion_tokens",
}
TIMINGS = {"retrieve_s", "load_s", "hidden_load_s", "select_s", "recompute_s", "ttft_s", "total_s"}
SHORT = ("--max-tokens", 8)


def answer(text: str = "two years", ttft_s: float = 0.41, dropped: tuple[Source, ...] = ()) -> Answer:
    return Answer(
        text=text,
        token_ids=(1, 2),
        finish_reason="stop",
        sources=(Source("a.md", 0, 0.9, "The warranty lasts two years."),),
        usage=Usage(4000, 3584, 358, 774, 0, 2),
        timings=Timings(0.1, 0.01, 0.02, 0.3, ttft_s, 1.0),
        policy="query",
        ratio=0.1,
        model="tiny",
        dropped=dropped,
    )


def test_timing_line_reads_as_in_the_design() -> None:
    line = timing_line(answer(), answer(ttft_s=3.2))
    assert line == "first token 0.41 s (full prefill 3.2 s, 7.8x) · 3,584 tokens reused · 358 recomputed"
    assert timing_line(answer(), None) == "first token 0.41 s · 3,584 tokens reused · 358 recomputed"


def test_json_tells_what_was_dropped_only_when_something_was() -> None:
    left_out = Source("b.md", 3, 0.1, "Something else.")
    assert "dropped" not in as_json(answer(), None)
    assert as_json(answer(dropped=(left_out,)), None)["dropped"] == [
        {"document": "b.md", "chunk": 3, "score": 0.1, "text": "Something else."}
    ]


def test_json_has_the_fields_of_the_design(run: Run, indexed: Path) -> None:
    result = run("ask", "How long is the warranty?", "--library", indexed / "docs.rag", "-k", 2, "--json", *SHORT)
    assert (result.status, result.err) == (0, "")
    found = result.json
    counts = {"hits", "misses", "matched_tokens"}
    assert found.keys() == {"answer", "sources", "usage", "timings", "policy", "ratio", "model"} | counts
    assert (found["hits"], found["misses"]) == (2, 0)
    assert 0 < found["matched_tokens"] <= found["usage"]["cached_tokens"]
    assert isinstance(found["answer"], str)
    assert len(found["sources"]) == 2
    assert found["sources"][0].keys() == {"document", "chunk", "score", "text"}
    assert found["sources"][0]["document"] == str(indexed / "docs" / "warranty.md")
    assert "two years" in found["sources"][0]["text"]
    assert found["usage"].keys() == USAGE
    assert found["timings"].keys() == TIMINGS
    assert all(isinstance(value, NUMBER) for value in (*found["usage"].values(), *found["timings"].values()))
    usage = found["usage"]
    assert usage["prompt_tokens"] == usage["cached_tokens"] - usage["recomputed_tokens"] + usage["computed_tokens"]
    assert 0 < usage["completion_tokens"] <= 8
    assert found["model"] == "tiny"


def test_compare_adds_full_prefill(run: Run, indexed: Path) -> None:
    found = run("ask", "How long?", "--library", indexed / "docs.rag", "--compare", "--json", "--ratio", 1, *SHORT).json
    assert found["full"].keys() == {"answer", "ttft_s"}
    assert found["full"]["answer"] == found["answer"], "at ratio 1 blending is full prefill"
    assert found["speedup"] == pytest.approx(found["full"]["ttft_s"] / found["timings"]["ttft_s"])


def test_an_automatic_ratio_is_told(run: Run, indexed: Path) -> None:
    arguments = ("ask", "How long?", "--library", indexed / "docs.rag", "--ratio", "auto", *SHORT)
    found = run(*arguments, "--json").json
    assert BlendSettings().ratio_floor <= found["ratio"] <= 1.0
    compared = run(*arguments, "--compare").out
    assert compared.startswith("query, ratio auto:\n")
    assert re.search(r" recomputed at ratio (0\.\d+|1)\n$", compared)
    assert " at ratio " not in run(*arguments, "--policy", "none").out


def test_answer_is_on_stdout_with_sources_and_timings(run: Run, indexed: Path) -> None:
    arguments = ("ask", "How long is the warranty?", "--library", indexed / "docs.rag", *SHORT)
    as_text, as_object = run(*arguments), run(*arguments, "--json").json
    assert (as_text.status, as_text.err) == (0, "")
    shown = as_text.out.replace("\n", "")
    assert shown.startswith("".join(character for character in as_object["answer"] if character.isprintable())[:3])
    assert "warranty.md" in as_text.out
    last_line = as_text.out.splitlines()[-1]
    assert last_line.startswith("first token ")
    assert last_line.endswith(f"{as_object['usage']['recomputed_tokens']:,} recomputed")


def test_comparison_shows_both_answers(run: Run, indexed: Path) -> None:
    out = run("ask", "How long?", "--library", indexed / "docs.rag", "--compare", "--ratio", 1, *SHORT).out
    assert out.startswith("query, ratio 1:\n")
    assert "\nfull prefill:\n" in out
    none = run("ask", "How long?", "--library", indexed / "docs.rag", "--compare", "--policy", "none", *SHORT).out
    assert none.startswith("none:\n")
    assert "the answers are the same" in out
    assert "x) · " in out.splitlines()[-1]


def test_same_seed_gives_the_same_sample(run: Run, indexed: Path) -> None:
    def sample(seed: int) -> str:
        library = indexed / "docs.rag"
        return run("ask", "q", "--library", library, "--temperature", 2, "--seed", seed, "--json", *SHORT).json[
            "answer"
        ]

    assert sample(1) == sample(1)
    assert len({sample(seed) for seed in range(1, 5)}) > 1


def test_prompt_that_does_not_fit_is_refused_or_shortened(run: Run, indexed: Path) -> None:
    arguments = ("ask", "q" * 400, "--library", indexed / "docs.rag", "--max-tokens", 300)
    refused = run(*arguments)
    assert refused.status == 2
    assert "the model's context is 1,024" in refused.err
    shortened = run(*arguments, "--overflow", "drop", "--json")
    assert shortened.status == 0
    assert shortened.json["dropped"]
    assert len(shortened.json["dropped"]) + len(shortened.json["sources"]) == 3


def test_namespace_without_documents_says_so(run: Run, indexed: Path) -> None:
    result = run("ask", "q", "--library", indexed / "docs.rag", "--namespace", "other")
    assert result.status == 1
    assert "nothing is indexed in namespace 'other' yet" in result.err


def test_another_model_is_refused(run: Run, indexed: Path, other_model: Path) -> None:
    result = run("ask", "q", "--library", indexed / "docs.rag", "--model", other_model)
    assert result.status == 1
    assert "was indexed with tiny, not with other" in result.err
