"""``ragblend doctor``: the gate's verdict as a table, as JSON and as exit status."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tiny
from tests.cli.conftest import Run


def test_good_model_passes(run: Run, model: Path) -> None:
    result = run("doctor", model, "--json")
    assert (result.status, result.err) == (0, "")
    assert result.json.keys() == {"model", "family", "passed", "checks"}
    assert (result.json["model"], result.json["family"], result.json["passed"]) == ("tiny", "llama", True)
    for check in result.json["checks"]:
        assert check.keys() == {"name", "passed", "max_abs_diff", "tolerance"}
        assert check["max_abs_diff"] <= check["tolerance"]


def test_folder_without_a_tokenizer_is_enough(run: Run, tmp_path: Path) -> None:
    tiny.family("qwen3").save_pretrained(tmp_path / "bare")
    result = run("doctor", tmp_path / "bare")
    assert result.status == 0
    assert "bare (qwen3) passed" in result.out


def test_failing_model_is_status_1(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragblend.blend.gate.FP32_TOLERANCE", 0.0)
    monkeypatch.setattr("ragblend.blend.gate.OWN_ROUNDINGS", 0.0)
    result = run("doctor", model)
    assert result.status == 1
    assert "FAILED" in result.out
