"""The gate on a tiny random model of every supported family, and on models made wrong on purpose."""

from __future__ import annotations

import pytest
import torch

from ragblend.blend import trust
from ragblend.blend.gate import FP32_TOLERANCE, LARGEST_FP32_SHARE, _Subject, _tolerated_share, run_gate
from ragblend.engine import Engine
from ragblend.errors import UnsupportedModelError
from ragblend.models.adapter import DecoderAdapter
from ragblend.models.rope import LayerRotation, RotaryGeometry
from tests import tiny

SERVED = [name for name in tiny.FAMILIES if name != "falcon"]


@pytest.mark.parametrize("family", SERVED)
def test_every_family_passes_in_fp32(family):
    report = run_gate(DecoderAdapter(tiny.family(family)), family)
    assert report.passed, report.reason()
    assert len(report.checks) == 7
    assert {check.tolerance for check in report.checks} == {FP32_TOLERANCE}


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-oss"])
def test_a_model_in_16_bits_is_checked_in_fp32_and_left_as_it_was(family):
    adapter = DecoderAdapter(tiny.family(family).to(torch.bfloat16))
    before = {name: tensor.clone() for name, tensor in adapter.model.state_dict().items()}
    report = run_gate(adapter, family)
    assert report.passed, report.reason()
    assert {check.tolerance for check in report.checks} == {FP32_TOLERANCE}
    after = adapter.model.state_dict()
    assert all(
        torch.equal(after[name], tensor) and after[name].dtype == tensor.dtype for name, tensor in before.items()
    )


def test_a_model_too_large_for_fp32_is_checked_as_it_is(monkeypatch):
    monkeypatch.setattr("ragblend.models.precision._SHARE_OF_FREE_MEMORY", 0.0)
    report = run_gate(DecoderAdapter(tiny.family("llama").to(torch.bfloat16)), "llama")
    assert report.passed, report.reason()
    assert report.checks[0].tolerance > FP32_TOLERANCE


class TestModelsThatRoundMore:
    """Logits thirty times as large from the same hidden states: so is what the last bits make of them."""

    def test_they_are_allowed_some_times_their_own_rounding(self, rounding_model):
        report = run_gate(DecoderAdapter(rounding_model), "qwen3")
        assert report.passed, report.reason()
        assert FP32_TOLERANCE < report.checks[0].tolerance < 10 * FP32_TOLERANCE

    def test_a_fault_is_caught_all_the_same(self, rounding_model):
        adapter = DecoderAdapter(rounding_model)
        wrong = [LayerRotation("interleaved", layer.table, layer.form) for layer in adapter.rotary.layers]
        adapter.rotary = RotaryGeometry(adapter.rotary.rotary, wrong)
        assert not run_gate(adapter, "qwen3").passed

    def test_what_transformers_gets_wrong_by_itself_allows_little(self, monkeypatch):
        own_logits = _Subject.own_logits
        monkeypatch.setattr(
            _Subject, "own_logits", lambda self, order, first=0: own_logits(self, order, first) + 5.0 * bool(first)
        )
        subject = _Subject(DecoderAdapter(tiny.family("llama")))
        assert _tolerated_share(subject, subject.own_logits((0, 1))) == LARGEST_FP32_SHARE

    @pytest.fixture
    def rounding_model(self):
        model = tiny.family("qwen3")
        with torch.no_grad():
            model.lm_head.weight.mul_(30)
        return model


def test_a_wrong_rotation_is_caught():
    adapter = DecoderAdapter(tiny.family("llama"))
    wrong = [LayerRotation("interleaved", layer.table, layer.form) for layer in adapter.rotary.layers]
    adapter.rotary = RotaryGeometry(adapter.rotary.rotary, wrong)
    report = run_gate(adapter, "llama")
    assert not report.passed
    assert "placed keys" in report.reason()


def test_a_rotated_layer_without_rope_is_caught():
    adapter = DecoderAdapter(tiny.family("smollm3"))
    adapter.rotary = RotaryGeometry(adapter.rotary.rotary, [adapter.rotary.layers[0]] * 4)
    assert not run_gate(adapter, "smollm3").passed


def test_an_engine_refuses_a_model_that_fails(own_cache, monkeypatch):
    monkeypatch.setattr("ragblend.blend.gate.FP32_TOLERANCE", 0.0)
    monkeypatch.setattr("ragblend.blend.gate.OWN_ROUNDINGS", 0.0)
    with pytest.raises(UnsupportedModelError, match=r"odd.*placed keys.*ragblend doctor"):
        Engine.from_model(tiny.family("qwen3"), tiny.tokenizer(), name="odd")


def test_the_gate_runs_once_for_a_model_and_its_versions(own_cache, monkeypatch):
    runs: list[str] = []

    def counted(adapter, name):
        runs.append(name)
        return run_gate(adapter, name)

    monkeypatch.setattr(trust, "run_gate", counted)
    for seed in (1, 1, 2):
        Engine.from_model(tiny.family("llama", seed=seed), tiny.tokenizer(), name=f"seed {seed}")
    assert runs == ["seed 1", "seed 2"]
