"""What a measurement was made on."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from ragblend.engine import Engine


@dataclass(frozen=True, slots=True)
class Machine:
    """device: the accelerator's name, or ``cpu``. cores: those this process may use. date: UTC, ISO 8601.

    triton: empty where it is not installed. commit: of the source tree, ``+`` behind it where files were changed;
    ``unknown`` outside of one.
    """

    cpu: str
    cores: int
    threads: int
    device: str
    torch: str
    triton: str
    transformers: str
    ragblend: str
    commit: str
    python: str
    model: str
    dtype: str
    date: str


def describe_machine(engine: Engine) -> Machine:
    """The facts of this process and of ``engine``."""
    return describe_device(engine.adapter.device, engine.name, engine.adapter.dtype)


def describe_device(device: torch.device, model: str, dtype: torch.dtype) -> Machine:
    """The facts of this process and of ``device``, for measurements of ``model`` in ``dtype``."""
    return Machine(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        torch=torch.__version__,
        triton=_version("triton"),
        transformers=version("transformers"),
        ragblend=_version("ragblend") or "source",  # empty where it runs from a source tree
        commit=_commit(),
        python=platform.python_version(),
        model=model,
        dtype=str(dtype).removeprefix("torch."),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _version(package: str) -> str:
    """The installed version; empty for none."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        found = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD"], capture_output=True, check=False).returncode
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip() + ("+" if changed else "")


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
