"""Every kernel compiled for GPUs that are not here: what it needs must fit, and lengths must not matter.

The kernels are compiled by the code that launches them, with the driver of ``target_driver.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
KERNELS = {
    "attend_kernel",
    "combine_kernel",
    "sums_kernel",
    "received_kernel",
    "place_kernel",
    "write_kernel",
    "deviation_kernel",
}
# Shared memory of one program. Code for sm_80 also runs on 8.6 and 8.9, which have less than the A100.
SHARED_BYTES = {"sm_80": 99 * 1024, "sm_90": 227 * 1024, "sm_100": 227 * 1024, "gfx942": 64 * 1024}
MOST_REGISTERS = {"sm_80": 255, "sm_90": 255, "sm_100": 255, "gfx942": 512}

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: pip install triton")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Triton's cache: empty at first, so that everything is compiled."""
    return tmp_path_factory.mktemp("triton")


def start(target: str, what: str, folder: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(folder)}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-W", "error", "-m", "tests.kernels.compile_kernels", target, what]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, problems = process.communicate()
    assert process.returncode == 0, problems[-3000:]
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture(scope="module")
def compiled(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Every kernel for every target, side by side."""
    running = {target: start(target, "every", folder) for target in SHARED_BYTES}
    return {target: finish(process) for target, process in running.items()}


def assert_fits(target: str, kernels: list[dict[str, Any]]) -> None:
    assert [kernel for kernel in kernels if kernel["shared_bytes"] > SHARED_BYTES[target]] == []
    assert [kernel for kernel in kernels if kernel["registers"] > MOST_REGISTERS[target]] == []
    assert [kernel for kernel in kernels if kernel["spilled_bytes"] > 0 and "fp32" not in kernel["case"]] == []
    # float32 is there to be exact, not to be fast.
    assert [kernel for kernel in kernels if kernel["spilled_bytes"] > 256] == []


@pytest.mark.parametrize("target", SHARED_BYTES)
def test_every_kernel_fits(compiled, target):
    assert {kernel["kernel"] for kernel in compiled[target]} == KERNELS
    assert_fits(target, compiled[target])


@pytest.mark.long
@pytest.mark.parametrize("target", SHARED_BYTES)
def test_other_sizes_and_types_fit(folder, target):
    assert_fits(target, finish(start(target, "more", folder)))


@pytest.mark.parametrize("target", [target for target in SHARED_BYTES if target.startswith("sm")])
def test_chunks_are_read_by_the_widest_loads(compiled, target):
    """Their addresses come out of a table, where the compiler cannot see how they are aligned."""
    (placing,) = (kernel for kernel in compiled[target] if kernel["case"] == "placing raw")
    assert placing["wide_loads"] >= 8


def test_a_prompt_of_another_length_compiles_nothing(compiled, folder):
    (counts,) = finish(start("sm_90", "lengths", folder))
    assert counts["before"] > 0
    assert counts["more"] == 0
