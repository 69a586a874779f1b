"""Which form of the kernels runs where, and what is said when the one asked for cannot."""

from __future__ import annotations

import pytest
import torch

from ragblend.engine import Engine
from ragblend.errors import ConfigError, KernelUnavailableError
from ragblend.kernels import ops
from ragblend.kernels.implementation import resolve, triton_obstacle
from ragblend.kernels.layout import Attention
from tests import tiny

CPU = torch.device("cpu")


@pytest.mark.parametrize(("asked", "runs"), [("auto", "torch"), ("torch", "torch"), ("reference", "reference")])
def test_a_cpu_runs_torch(asked, runs):
    assert resolve(asked, CPU) == runs


def test_triton_on_a_cpu_is_refused_by_name(tiny_engine):
    """Outside of Triton's interpreter, which tests/kernels/interpreted uses."""
    assert triton_obstacle(CPU)
    tensor = torch.zeros(1, 1, 1, 16)
    with pytest.raises(KernelUnavailableError, match="kernels='auto'"):
        ops.attend_rows(tensor, tensor, tensor, torch.tensor([0]), Attention(1.0), impl="triton")
    with pytest.raises(KernelUnavailableError, match="cannot run here"):
        Engine.from_model(tiny.family("llama"), tiny.tokenizer(), kernels="triton")


def test_an_unknown_form_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="'cutlass': choose one of auto, triton, torch, reference"):
        resolve("cutlass", CPU)


def test_an_engine_runs_on_the_oracles(own_cache):
    """The slow form of each operation is a whole form: it passes the gate, which every engine runs at first."""
    engine = Engine.from_model(tiny.family("gemma2"), tiny.tokenizer(), kernels="reference")
    assert engine.adapter.kernels == "reference"
