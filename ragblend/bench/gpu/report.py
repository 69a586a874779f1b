"""The short tables of the GPU measurements: what a person reads; the JSON holds everything."""

from __future__ import annotations

from collections.abc import Sequence

from ragblend.bench.gpu.decoding import DecodingRow
from ragblend.bench.gpu.kernels import KernelRow
from ragblend.bench.gpu.requests import RequestRow

Table = tuple[list[str], list[list[str]]]


def kernel_table(rows: Sequence[KernelRow]) -> Table:
    """A wrong operation has its difference in the place of figures."""
    columns = ["model", "context", "operation", "time", "torch", "GB/s", "of copy", "TFLOP/s", "of flash"]
    return columns, [_kernel_cells(row) for row in rows]


def _kernel_cells(row: KernelRow) -> list[str]:
    name = [row.model, f"{row.context:,}", row.operation]
    if not row.correct:
        return [*name, f"WRONG by {row.max_abs_diff:.2g}", "", "", "", "", ""]
    return [
        *name,
        _micro(row.seconds),
        _micro(row.torch_s),
        _scaled(row.bytes_s, 1e9, ",.0f"),
        _scaled(row.of_copy, 1, ".0%"),
        _scaled(row.flops_s, 1e12, ",.1f"),
        _scaled(row.of_flash, 1, ".0%"),
    ]


def request_table(rows: Sequence[RequestRow]) -> Table:
    """What was skipped has the reason in the place of figures."""
    columns = ["model", "context", "policy", "tier", "first token", "vs full", "computed", "of bound"]
    return columns, [_request_cells(row) for row in rows]


def _request_cells(row: RequestRow) -> list[str]:
    name = [row.model, f"{row.context:,}", row.policy, row.tier]
    if row.skipped:
        return [*name, row.skipped, "", "", ""]
    return [
        *name,
        _scaled(row.ttft_s, 1e-3, ",.1f") + " ms",
        _scaled(row.speedup_vs_full, 1, ".1f") + "x",
        f"{row.computed_tokens:,}",
        _scaled(row.of_bound, 1, ".2f") + "x",
    ]


def decoding_table(rows: Sequence[DecodingRow]) -> Table:
    """A form that could not run has no figures."""
    columns = ["model", "context", "appended", "as a graph", "difference", "of bound"]
    return columns, [
        [
            row.model,
            f"{row.context:,}",
            _micro(row.appended_s),
            _micro(row.graph_s),
            _scaled(row.max_abs_diff, 1, ".2g"),
            _scaled(row.of_bound, 1, ".2f") + "x",
        ]
        for row in rows
    ]


def _micro(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:,.0f} us"


def _scaled(number: float | None, unit: float, form: str) -> str:
    return "" if number is None else format(number / unit, form)
