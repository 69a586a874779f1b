"""What a report says about where it was made."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

import torch
import transformers

from ragblend.bench.machine import describe_machine
from ragblend.engine import Engine


def test_the_facts_that_a_figure_depends_on(tiny_engine: Engine) -> None:
    machine = describe_machine(tiny_engine)
    assert (machine.model, machine.dtype, machine.device) == ("tiny-llama", "float32", "cpu")
    assert (machine.torch, machine.transformers) == (torch.__version__, transformers.__version__)
    assert machine.threads == torch.get_num_threads()
    assert machine.cores >= 1
    assert datetime.fromisoformat(machine.date).utcoffset() is not None
    assert all(value != "" for value in asdict(machine).values())
