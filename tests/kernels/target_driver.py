"""A Triton driver for GPUs that are not here: kernels are compiled for them by the code that launches them, not run."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

# Shared memory that one program may use; for sm_80 that of the smaller 8.6 and 8.9, which share its code path.
TARGETS = {
    "sm_80": (GPUTarget("cuda", 80, 32), 99 * 1024),
    "sm_90": (GPUTarget("cuda", 90, 32), 227 * 1024),
    "sm_100": (GPUTarget("cuda", 100, 32), 227 * 1024),
    "gfx942": (GPUTarget("hip", "gfx942", 64), 64 * 1024),
}


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel. spilled_bytes: of registers that went to memory, a thread. wide_loads: of 16 bytes."""

    kernel: str
    shared_bytes: int
    spilled_bytes: int
    registers: int
    wide_loads: int


class TargetDriver:
    """What Triton asks of a driver, for one target. ``compiled`` lists every kernel that was launched, once."""

    def __init__(self, name: str) -> None:
        self.target, self.shared_bytes = TARGETS[name]
        self.device = list(TARGETS).index(name)  # Triton keeps compiled kernels by device
        self.compiled: list[Compiled] = []
        self.utils = self

    def __enter__(self) -> TargetDriver:
        driver.set_active(self)
        return self

    def __exit__(self, *_: object) -> None:
        driver._active = None

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return self.device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self.shared_bytes}

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        """What would launch a kernel."""
        return lambda *_: None

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[Any, ...]:
        """Called once for each compiled kernel: its module, function, registers, spills and most threads."""
        spilled, registers, wide = (_amd if self.target.backend == "hip" else _nvidia)(binary)
        self.compiled.append(Compiled(name, shared, spilled, registers, wide))
        return object(), 0, registers, spilled, 1024


def _nvidia(binary: bytes) -> tuple[int, int, int]:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(binary)
        usage = _run(knobs.nvidia.cuobjdump.path, "--dump-resource-usage", path)
        code = _run(knobs.nvidia.nvdisasm.path, "-c", path)
    found = dict(re.findall(r"(REG|STACK|LOCAL):(\d+)", usage))
    return int(found["STACK"]) + int(found["LOCAL"]), int(found["REG"]), code.count("LDG.E.128")


def _run(tool: str, argument: str, path: Path) -> str:
    return subprocess.run([tool, argument, str(path)], capture_output=True, text=True, check=True).stdout


def _amd(binary: bytes) -> tuple[int, int, int]:
    """The counts are in the code object's metadata, as msgpack: a name, then a small number."""
    return _number(binary, b".private_segment_fixed_size"), _number(binary, b".vgpr_count"), 0


def _number(binary: bytes, name: bytes) -> int:
    at = binary.index(name) + len(name)
    head = binary[at]
    widths = {0xCC: 1, 0xCD: 2, 0xCE: 4}
    return int.from_bytes(binary[at + 1 : at + 1 + widths[head]], "big") if head in widths else head
