"""Which form of the kernels runs: Triton on a GPU that has it, else torch's own operations."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Literal, get_args

import torch

from ragblend.errors import ConfigError, KernelUnavailableError

Implementation = Literal["auto", "triton", "torch", "reference"]
"""``auto`` is triton on a GPU that has it, else torch. ``reference``: the oracles, slow and in fp32."""

Resolved = Literal["triton", "torch", "reference"]


def resolve(implementation: Implementation, device: torch.device) -> Resolved:
    """The form that runs on ``device``.

    Raises ConfigError for an unknown name, KernelUnavailableError where Triton is asked for and cannot run.
    """
    if implementation not in get_args(Implementation):
        names = ", ".join(get_args(Implementation))
        raise ConfigError(f"unknown kernels {implementation!r}: choose one of {names}")
    if implementation == "auto":
        return "torch" if triton_obstacle(device) or device.type != "cuda" else "triton"
    if implementation == "triton" and (obstacle := triton_obstacle(device)):
        raise KernelUnavailableError(f"the Triton kernels cannot run here: {obstacle}; or use kernels='auto'")
    return implementation


@cache
def triton_obstacle(device: torch.device) -> str:
    """Why the Triton kernels cannot run on ``device``; empty if they can."""
    if find_spec("triton") is None:
        return "the package triton is missing, pip install 'ragblend[triton]'"
    if device.type == "cuda":
        if torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0):
            return f"{torch.cuda.get_device_name(device)} is older than compute capability 8.0"
        return ""
    if device.type == "cpu" and interpreted():
        return ""
    return f"they need a GPU, and the tensors are on {device.type}"


def interpreted() -> bool:
    """Whether Triton runs kernels in its interpreter, on the CPU: ``TRITON_INTERPRET=1``, for tests."""
    if find_spec("triton") is None:
        return False
    from triton import knobs

    return bool(knobs.runtime.interpret)
