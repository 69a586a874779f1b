"""``ragblend doctor``: the correctness gate."""

from __future__ import annotations

from typing import Annotated

import typer

from ragblend.cli.fetch import offer_to_fetch
from ragblend.cli.options import Debug, Device, Dtype, Json
from ragblend.cli.output import emit, stdout, table


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(help="A transformers id, a folder or a .gguf file (default: the embedded model)."),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Check that blending is exact where it must be, on random ids: a model that fails is not to be used."""
    if not model:
        offer_to_fetch(json=json)
    from ragblend.blend.gate import run_gate
    from ragblend.models.adapter import DecoderAdapter
    from ragblend.models.load import load_model

    loaded = load_model(model, device, dtype)
    report = run_gate(DecoderAdapter(loaded.model), loaded.name)
    if json:
        emit(report)
    else:
        rows = [
            ("ok" if check.passed else "FAILED", check.name, f"{check.max_abs_diff:.1e}", f"{check.tolerance:.1e}")
            for check in report.checks
        ]
        stdout().print(table(["", "check", "off by", "allowed"], rows))
        verdict = "passed: its KV can be blended" if report.passed else "FAILED: ragblend refuses this model"
        stdout().print(f"{report.model} ({report.family}) {verdict}", markup=False, soft_wrap=True)
    return 0 if report.passed else 1
