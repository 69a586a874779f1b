"""``ragblend bench kernels``: each kernel checked against its oracle, then timed against what the device can do."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ragblend.bench.gpu.clock import Ceilings, Clock
from ragblend.bench.gpu.operations import Layer, Operation, operations
from ragblend.bench.gpu.shapes import ModelShape, shapes_named
from ragblend.bench.machine import Machine, describe_device
from ragblend.config import require
from ragblend.kernels.implementation import Implementation, resolve


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One operation in the sizes of one model and context. seconds and all figures are None where it is wrong.

    torch_s: the same on torch's own operations, where others ran. of_copy: bytes a second by those of a copy.
    of_flash: useful operations a second by those of torch's causal attention of all rows.
    """

    model: str
    context: int
    operation: str
    correct: bool
    max_abs_diff: float
    tolerance: float
    seconds: float | None = None
    torch_s: float | None = None
    bytes_s: float | None = None
    flops_s: float | None = None
    of_copy: float | None = None
    of_flash: float | None = None


@dataclass(frozen=True, slots=True)
class KernelReport:
    """kernels: the form that ran. ceilings: measured in the same run."""

    kernels: str
    rows: tuple[KernelRow, ...]
    ceilings: Ceilings
    machine: Machine


def run(
    *,
    device: torch.device,
    models: Sequence[str],
    contexts: Sequence[int],
    ratio: float = 0.15,
    repeats: int = 10,
    dtype: torch.dtype = torch.bfloat16,
    kernels: Implementation = "auto",
    progress: Callable[[int, int], None] | None = None,
) -> KernelReport:
    """Measure every operation in the sizes of every model and context (tokens); one layer, no weights.

    Raises ConfigError for unknown models and sizes out of range, KernelUnavailableError.
    """
    require(bool(contexts) and min(contexts) >= 1, "contexts must be lengths of at least 1 token")
    require(0.0 < ratio <= 1.0, f"ratio must be above 0 and at most 1, got {ratio}")
    require(repeats >= 1, f"repeats must be at least 1, got {repeats}")
    form = resolve(kernels, device)
    # Models of one attention shape give the same figures.
    shapes = {(s.heads, s.kv_heads, s.head_dim): s for s in reversed(shapes_named(models))}
    clock = Clock(device, repeats)
    ceilings = clock.ceilings(dtype)
    rows: list[KernelRow] = []
    sizes = [(shape, context) for shape in reversed(shapes.values()) for context in contexts]
    for done, (shape, context) in enumerate(sizes):
        rows.extend(_measure(Layer(shape, context, ratio, dtype, device), clock, ceilings, form))
        if progress is not None:
            progress(done + 1, len(sizes))
    return KernelReport(form, tuple(rows), ceilings, describe_device(device, "random tensors", dtype))


@torch.inference_mode()
def _measure(layer: Layer, clock: Clock, ceilings: Ceilings, form: Implementation) -> list[KernelRow]:
    flash = _flash(layer, clock)
    rows = []
    for operation in operations(layer):
        rows.append(measure_operation(layer.shape, layer.context, operation, clock, ceilings, flash, form))
        del operation
        gc.collect()
    return rows


def measure_operation(
    shape: ModelShape,
    context: int,
    operation: Operation,
    clock: Clock,
    ceilings: Ceilings,
    flash: float,
    form: Implementation,
) -> KernelRow:
    """Check, and only then time."""
    difference, tolerance = operation.check(operation.run(form))
    correct = difference <= tolerance
    if not correct:
        return KernelRow(shape.name, context, operation.name, correct, difference, tolerance)
    seconds = clock.seconds(lambda: operation.run(form))
    flops_s = operation.flops / seconds if operation.flops else None
    return KernelRow(
        model=shape.name,
        context=context,
        operation=operation.name,
        correct=correct,
        max_abs_diff=difference,
        tolerance=tolerance,
        seconds=seconds,
        torch_s=None if form == "torch" else clock.seconds(lambda: operation.run("torch")),
        bytes_s=operation.bytes / seconds,
        flops_s=flops_s,
        of_copy=operation.bytes / seconds / ceilings.copy_bytes_s,
        of_flash=None if flops_s is None else flops_s / flash,
    )


def _flash(layer: Layer, clock: Clock) -> float:
    shape = layer.shape
    query = layer.normal(1, shape.heads, layer.context, shape.head_dim)
    keys = layer.normal(1, shape.kv_heads, layer.context, shape.head_dim)
    return clock.flash_flops_s(query, keys, keys)
