"""What the kernels are launched with on each kind of GPU: a small table, and no tuning while a request waits."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from ragblend.errors import KernelUnavailableError
from ragblend.kernels.implementation import interpreted


@dataclass(frozen=True, slots=True)
class Blocks:
    """Tile of an attention kernel: lines (a line is a row in one head) by keys, and how it is compiled."""

    lines: int
    keys: int
    warps: int
    stages: int

    @property
    def options(self) -> dict[str, Any]:
        return options(self.warps, self.stages)


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of GPU. processors: how many it has, where the device cannot be asked.

    attend: tiles by padded head dimension and bytes of an element, for many lines. few: for lines that fit 16.
    """

    name: str
    processors: int
    attend: dict[tuple[int, int], Blocks]
    few: dict[tuple[int, int], Blocks]

    def blocks(self, lines: int, padded_dim: int, element_bytes: int) -> Blocks:
        """The tile for ``lines`` lines. Raises KernelUnavailableError for a head dimension that has none."""
        table = self.few if lines <= 16 else self.attend
        found = table.get((max(padded_dim, 64), element_bytes))
        if found is None:
            raise KernelUnavailableError(
                f"the Triton kernels take no {padded_dim} dimensions of {element_bytes} bytes: use kernels='torch'"
            )
        return found


def options(warps: int, stages: int) -> dict[str, Any]:
    """Compile options of a launch. Fusing multiply and add is said outright: Triton 3.9 warns of its default."""
    return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}


# float32 is there to be exact (the gate uses it), not to be fast: small tiles, alike on all of NVIDIA's.
_FLOAT32 = {(64, 4): Blocks(32, 32, 4, 1), (128, 4): Blocks(16, 32, 4, 1), (256, 4): Blocks(16, 32, 8, 1)}

# Gemma 4's global layers have 512 dimensions: small tiles, so that they fit everywhere.
_LARGEST = {(512, 2): Blocks(16, 16, 4, 1), (512, 4): Blocks(16, 16, 8, 1)}

# Ampere and Ada; shared memory is that of the smallest, 8.6 and 8.9. Also consumer Blackwell (12.x).
_AMPERE = Target(
    name="sm_80",
    processors=108,
    attend={
        (64, 2): Blocks(128, 64, 8, 3),
        (128, 2): Blocks(128, 32, 8, 3),
        (256, 2): Blocks(64, 32, 8, 2),
        **_FLOAT32,
        **_LARGEST,
    },
    few={
        (64, 2): Blocks(16, 128, 4, 3),
        (128, 2): Blocks(16, 64, 4, 3),
        (256, 2): Blocks(16, 32, 4, 3),
        **_FLOAT32,
        **_LARGEST,
    },
)

# Hopper and data-centre Blackwell.
_HOPPER = Target(
    name="sm_90",
    processors=132,
    attend={
        (64, 2): Blocks(128, 128, 8, 3),
        (128, 2): Blocks(128, 64, 8, 3),
        (256, 2): Blocks(128, 32, 8, 2),
        **_FLOAT32,
        **_LARGEST,
    },
    few={
        (64, 2): Blocks(16, 128, 4, 4),
        (128, 2): Blocks(16, 128, 4, 3),
        (256, 2): Blocks(16, 64, 4, 3),
        **_FLOAT32,
        **_LARGEST,
    },
)

# MI300: 64 KiB of local memory, wavefronts of 64; its matrix cores multiply float32 themselves.
_CDNA = Target(
    name="gfx942",
    processors=304,
    attend={
        (64, 2): Blocks(128, 64, 4, 2),
        (128, 2): Blocks(128, 64, 4, 1),
        (256, 2): Blocks(64, 32, 4, 1),
        (64, 4): Blocks(32, 32, 4, 1),
        (128, 4): Blocks(32, 32, 4, 1),
        (256, 4): Blocks(16, 32, 4, 1),
        **_LARGEST,
    },
    few={
        (64, 2): Blocks(16, 64, 4, 2),
        (128, 2): Blocks(16, 64, 4, 1),
        (256, 2): Blocks(16, 32, 4, 1),
        (64, 4): Blocks(16, 32, 4, 1),
        (128, 4): Blocks(16, 32, 4, 1),
        (256, 4): Blocks(16, 16, 4, 1),
        **_LARGEST,
    },
)

_SMALL = Blocks(64, 64, 4, 1)
# Tiles small enough that tests of a hundred positions cross many of their borders.
_INTERPRETER = Target(
    name="interpreter",
    processors=4,
    attend={(dim, size): _SMALL for dim in (64, 128, 256, 512) for size in (2, 4)},
    few={(dim, size): Blocks(16, 64, 4, 1) for dim in (64, 128, 256, 512) for size in (2, 4)},
)


def target_of(device: torch.device) -> Target:
    """The row of the table for the GPU that is current where the kernel will run."""
    if interpreted():
        return _INTERPRETER
    with on_device(device):
        current = triton.runtime.driver.active.get_current_target()
    if current.backend == "hip":
        return _CDNA
    return _HOPPER if current.arch // 10 in (9, 10) else _AMPERE


def precision(device: torch.device) -> str:
    """How float32 is multiplied: NVIDIA's tensor cores do it in three parts, which loses next to nothing."""
    return "tf32x3" if target_of(device) in (_AMPERE, _HOPPER) else "ieee"


def processors(device: torch.device) -> int:
    """How many multiprocessors (compute units) the device has."""
    if device.type != "cuda":
        return target_of(device).processors
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def launch(kernel: Any, grid: tuple[int, ...], tensor: Tensor, *arguments: Any, **constants: Any) -> None:
    """Run a kernel, whose first argument is ``tensor``, on its device: Triton takes the current one."""
    with on_device(tensor.device):
        kernel[grid](tensor, *arguments, **constants)


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Makes a GPU the current one for a while; does nothing for other devices."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
