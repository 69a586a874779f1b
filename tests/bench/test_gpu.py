"""The GPU measurements, tried on a CPU: what they refuse, and that every part of them runs. No figure is asserted."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from ragblend.bench.gpu import kernels, requests
from ragblend.bench.gpu.clock import Clock
from ragblend.bench.gpu.models import EightBitLinear, random_model
from ragblend.bench.gpu.operations import Layer, Operation, operations
from ragblend.bench.gpu.report import decoding_table, kernel_table, request_table
from ragblend.bench.gpu.shapes import SHAPES, shapes_named
from ragblend.errors import ConfigError, KernelUnavailableError

CPU = torch.device("cpu")
TINY = SHAPES["tiny"]
OPERATIONS = ["place_chunks", "write_rows", "deviation", "attend_rows", "attention_received"]


def measured(**settings):
    defaults = {"device": CPU, "models": ["tiny"], "contexts": [40], "repeats": 1, "dtype": torch.float32}
    return kernels.run(**{**defaults, **settings})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_operation_is_right_and_timed(dtype):
    rows = measured(dtype=dtype).rows
    assert {row.operation.partition(",")[0] for row in rows} == set(OPERATIONS)
    assert all(row.correct and row.seconds > 0 and row.bytes_s > 0 for row in rows)
    assert all((row.of_flash is not None) == row.operation.startswith("att") for row in rows)


def test_models_of_one_attention_shape_are_measured_once():
    twins = measured(models=["llama-3-8b", "mistral-7b"], contexts=[2])
    assert {row.model for row in twins.rows} == {"llama-3-8b"}


@pytest.mark.parametrize("wrong", [1.0, math.nan])
def test_a_wrong_operation_gets_no_figures(wrong):
    """Whatever its time was: a number that is not a number fails as well."""
    operation = Operation("broken", lambda impl: torch.zeros(1), lambda result: (wrong, 0.1), bytes=4)
    clock = Clock(CPU, 1)
    row = kernels.measure_operation(TINY, 8, operation, clock, clock.ceilings(torch.float32), 1.0, "torch")
    assert not row.correct
    assert (row.seconds, row.torch_s, row.bytes_s, row.of_copy) == (None, None, None, None)
    assert kernel_table([row])[1][0][3].startswith("WRONG")


def test_a_check_notices_a_single_wrong_number():
    layer = Layer(TINY, 40, 0.2, torch.float32, CPU)
    for operation in operations(layer):
        result = operation.run("torch").clone()
        assert operation.check(result)[0] <= operation.check(result)[1], operation.name
        result.view(-1)[-1] += 1.0
        difference, tolerance = operation.check(result)
        assert difference > tolerance, operation.name


def test_requests_of_every_policy_and_tier():
    ceilings = Clock(CPU, 1).ceilings(torch.float32)
    rows, (step,) = requests.run(
        device=CPU, shape=TINY, contexts=[40], ceilings=ceilings, ratio=0.25, repeats=1, dtype=torch.float32
    )
    found = {(row.policy, row.tier): row for row in rows}
    assert len(rows) == len(found) == 1 + len(requests.TIERS) * (len(requests.POLICIES) - 1)
    assert all(row.ttft_s > 0 and row.bound_s > 0 and not row.skipped for row in rows)
    total = requests.ANCHOR_TOKENS + 40 + 64
    assert found["full", "none"].computed_tokens == total
    for tier in requests.TIERS:
        assert found["none", tier].computed_tokens == 64
        assert found["prefix", tier].computed_tokens <= total - 40 - requests.ANCHOR_TOKENS
    assert (step.model, step.context, step.graph_s, step.max_abs_diff) == ("tiny", 40, None, None)
    assert step.appended_s > 0
    assert step.of_bound == step.appended_s / step.bound_s
    assert decoding_table([step])[1][0][3] == ""


def test_what_does_not_fit_in_time_is_named():
    ceilings = Clock(CPU, 1).ceilings(torch.float32)
    (row,), decoding = requests.run(device=CPU, shape=TINY, contexts=[40], ceilings=ceilings, deadline=0.0)
    assert decoding == []
    assert (row.skipped, row.ttft_s) == ("out of time", None)
    assert request_table([row])[1][0][4] == "out of time"


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("llama-3-8b", 8.0e9), ("mistral-7b", 7.2e9), ("qwen2.5-14b", 14.8e9), ("yi-34b", 34.4e9), ("llama-70b", 70.6e9)],
)
def test_shapes_have_the_sizes_of_their_models(name, parameters):
    shape = replace(SHAPES[name], eight_bit=False)
    assert shape.weight_bytes / 2 == pytest.approx(parameters, rel=0.01)


def test_llama_3_8b_keeps_128_kib_a_token():
    assert SHAPES["llama-3-8b"].kv_bytes(1) == 128 * 1024


def test_an_eight_bit_model_computes():
    model = random_model(replace(TINY, eight_bit=True), CPU, torch.bfloat16)
    linears = [module for module in model.modules() if isinstance(module, EightBitLinear)]
    assert len(linears) == 7 * TINY.layers
    inputs = torch.randn(3, linears[0].weight.shape[1]).bfloat16()
    exact = inputs.float() @ (linears[0].weight.float() * linears[0].scale).T
    torch.testing.assert_close(linears[0](inputs).float(), exact, atol=0.1 * float(exact.abs().max()), rtol=0)
    assert model(input_ids=torch.tensor([[1, 2, 3]])).logits.isfinite().all()


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ConfigError, match="llama-9: choose from llama-3-8b"):
        shapes_named(["llama-9"])
    with pytest.raises(ConfigError, match="at least 1 token"):
        measured(contexts=[])
    with pytest.raises(ConfigError, match="ratio must be above 0"):
        measured(ratio=0.0)
    with pytest.raises(KernelUnavailableError):
        measured(kernels="triton")
