"""``ragblend bench``: measurements on this machine, with the user's own model and data."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragblend.cli import bench_compare, bench_growth, start
from ragblend.cli.measuring import RATIO, Data, Policies, print_machine, progress_bar, whole_number
from ragblend.cli.options import Debug, Device, Dtype, FixedRatio, Json, MeasuredModel, Ratio
from ragblend.cli.output import emit, stdout, table
from ragblend.config import CODECS, StoreSettings, as_ratio, fixed_ratio, require

if TYPE_CHECKING:
    from ragblend.bench.baseline import Baseline

app = typer.Typer(help="Measure on this machine, with your model and your data.")

_SHAPES = "llama-3-8b,qwen2.5-14b,yi-34b"
_LENGTHS = "3072,8192"
_POLICIES = "full,prefix,none,leading,hkvd,query"

app.command("compare")(bench_compare.compare)
app.command("throughput")(bench_compare.throughput)
app.command("growth")(bench_growth.growth)
app.command("tasks")(bench_growth.tasks)


@app.command("ttft")
def ttft(
    contexts: Annotated[str, typer.Option(help="Lengths of the context in tokens, separated by commas.")] = "1024,4096",
    policies: Policies = _POLICIES,
    ratio: Ratio = RATIO,
    repeats: Annotated[int, typer.Option(help="Rounds that are counted, after one to warm up.")] = 3,
    chunk_tokens: Annotated[int, typer.Option(help="Length of a chunk.")] = 256,
    data: Data = None,
    codec: Annotated[str, typer.Option(help=f"What the chunks' KV is kept as: {', '.join(CODECS)}.")] = "raw",
    storage_mb_s: Annotated[
        float | None, typer.Option(min=0.001, help="Load as from storage of so many MB/s.", show_default=False)
    ] = None,
    model: MeasuredModel = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure the time to the first token, by context length and policy, on stored chunks.

    The text is that of the passages in --data, else the example handbook. "of bound": the first token's time by the
    longer of loading and computing. "of floor": the time with loaded KV by the least that computing its rows takes.
    """
    lengths = [whole_number(word) for word in contexts.split(",")]
    names = policies.split(",")
    require(repeats >= 1, f"repeats must be at least 1, got {repeats}")
    from ragblend.bench.data import read_examples
    from ragblend.bench.variants import as_variants, ratio_shown

    as_variants(names, as_ratio(ratio))
    StoreSettings(codec=codec)
    texts = [passage.text for example in read_examples(data) for passage in example.passages] if data else None
    engine = start.start_engine(model, device, dtype, json=json)
    from ragblend.bench.ttft import run

    with progress_bar("rounds") as advance:
        report = run(
            engine,
            contexts=lengths,
            policies=names,
            ratio=as_ratio(ratio),
            repeats=repeats,
            chunk_tokens=chunk_tokens,
            texts=texts,
            codec=codec,
            storage_mb_s=storage_mb_s,
            progress=advance,
        )
    if json:
        emit(report)
        return
    rows = [
        (
            f"{row.context:,}",
            row.policy,
            ratio_shown(row.policy, row.ratio),
            f"{row.ttft_s:.3f}",
            f"{row.speedup_vs_full:.1f}x",
            f"{row.computed_tokens:,}",
            f"{row.prompt_tokens:,}",
            f"{row.load_s:.3f}",
            f"{row.of_bound:.2f}",
            "" if row.of_floor is None else f"{row.of_floor:.2f}",
        )
        for row in report.rows
    ]
    columns = ["context", "policy", "ratio", "first\ntoken\nin s", "vs full", "tokens\ncomputed", "of"]
    stdout().print(table([*columns, "loading\nin s", "of\nbound", "of\nfloor"], rows))
    for length, baseline in zip(lengths, report.baseline, strict=True):
        _print_baseline(f"full prefill at {length:,}", baseline)
    print_machine(report.machine)


@app.command("quality")
def quality(
    data: Annotated[Path, typer.Option(help="JSON lines with id, question, answers and passages (title, text).")],
    policies: Policies = _POLICIES,
    ratio: FixedRatio = RATIO,
    limit: Annotated[int | None, typer.Option(help="Measure on the first so many questions only.")] = None,
    model: MeasuredModel = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure the answers, and how close each policy comes to full prefill, on questions with known answers."""
    names = policies.split(",")
    from ragblend.bench.data import read_examples
    from ragblend.bench.variants import as_fixed_variants, ratio_shown

    share = fixed_ratio(as_ratio(ratio))
    as_fixed_variants(names, share)
    read_examples(data, limit)
    engine = start.start_engine(model, device, dtype, json=json)
    from ragblend.bench.quality import run

    with progress_bar("questions") as advance:
        report = run(engine, data=data, policies=names, ratio=share, limit=limit, progress=advance)
    if json:
        summary: dict[str, Any] = asdict(report)
        del summary["measurements"]  # every policy on every question: for scripts, which call run themselves
        emit(summary)
        return
    rows = [
        (
            row.policy,
            ratio_shown(row.policy, row.ratio),
            f"{row.f1:.3f}",
            f"{row.em:.3f}",
            f"{row.kl_to_full:.4f}",
            f"{row.top1_agreement:.3f}",
            f"{row.gold_nll:.3f}",
            f"{row.speedup_vs_full:.1f}x",
            str(row.n),
        )
        for row in report.rows
    ]
    columns = ["policy", "ratio", "F1", "EM", "KL to full", "top-1", "gold NLL", "vs full", "n"]
    stdout().print(table(columns, rows))
    if report.settings.too_long:
        stdout().print(f"left out, longer than the context: {', '.join(report.settings.too_long)}", markup=False)
    _print_baseline("full prefill", report.baseline)
    print_machine(report.machine)


@app.command("store")
def store(
    codecs: Annotated[str, typer.Option(help="Codecs, separated by commas.")] = ",".join(CODECS),
    tokens: Annotated[int, typer.Option(help="Tokens that are written, read and placed.")] = 4096,
    chunk_tokens: Annotated[int, typer.Option(help="Length of a chunk.")] = 256,
    repeats: Annotated[int, typer.Option(help="Rounds that are counted, after one to warm up.")] = 3,
    data: Data = None,
    policies: Policies = "none,query",
    ratio: FixedRatio = RATIO,
    limit: Annotated[int | None, typer.Option(help="Ask the first so many questions only.")] = None,
    model: MeasuredModel = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure what each codec takes on the disk and in time; on the questions in --data, its fidelity too."""
    require(repeats >= 1, f"repeats must be at least 1, got {repeats}")
    names, asked = codecs.split(","), policies.split(",")
    from ragblend.bench.codecs import as_codecs, run
    from ragblend.bench.data import read_examples
    from ragblend.bench.variants import as_fixed_variants

    as_codecs(names)
    share = fixed_ratio(as_ratio(ratio))
    as_fixed_variants(asked, share)
    if data:
        read_examples(data, limit)
    engine = start.start_engine(model, device, dtype, json=json)
    with progress_bar("steps") as advance:
        report = run(
            engine,
            codecs=names,
            tokens=tokens,
            chunk_tokens=chunk_tokens,
            repeats=repeats,
            data=data,
            policies=asked,
            ratio=share,
            limit=limit,
            progress=advance,
        )
    if json:
        emit(report)
        return
    from ragblend.bench.codecs import fidelity_table, store_table

    stdout().print(table(*store_table(report.rows)))
    if report.fidelity:
        stdout().print(table(*fidelity_table(report.fidelity)))
    print_machine(report.machine)


@app.command("kernels")
def kernels(
    models: Annotated[str, typer.Option(help="Models whose shapes are measured, separated by commas.")] = _SHAPES,
    contexts: Annotated[str, typer.Option(help="Lengths of the context in tokens, separated by commas.")] = _LENGTHS,
    ratio: Annotated[float, typer.Option(help="Share of the rows that are computed, 0 to 1.")] = 0.15,
    repeats: Annotated[int, typer.Option(help="Runs of each operation that are counted.")] = 10,
    form: Annotated[str, typer.Option("--kernels", help="auto, triton, torch or reference.")] = "auto",
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check each kernel against its plain form, then time it against what this device can do. Needs no model."""
    lengths = [whole_number(word) for word in contexts.split(",")]
    from typing import cast

    from ragblend.bench.gpu.kernels import run
    from ragblend.bench.gpu.report import kernel_table
    from ragblend.kernels.implementation import Implementation
    from ragblend.models.load import choose_device, choose_dtype

    where = choose_device(device)
    with progress_bar("shapes") as advance:
        report = run(
            device=where,
            models=models.split(","),
            contexts=lengths,
            ratio=ratio,
            repeats=repeats,
            dtype=choose_dtype(dtype, where),
            kernels=cast(Implementation, form),
            progress=advance,
        )
    if json:
        emit(report)
        return
    columns, rows = kernel_table(report.rows)
    stdout().print(table(columns, rows))
    ceilings = report.ceilings
    stdout().print(
        f"{report.kernels} kernels; at most: copy {ceilings.copy_bytes_s / 1e9:,.0f} GB/s, "
        f"upload {ceilings.upload_bytes_s / 1e9:,.0f} GB/s, product {ceilings.matmul_flops_s / 1e12:,.1f} TFLOP/s",
        style="dim",
        soft_wrap=True,
    )
    print_machine(report.machine)


def _print_baseline(title: str, baseline: Baseline) -> None:
    stdout().print(
        f"{title}: ragblend {baseline.ragblend_full_s:.3f} s, transformers {baseline.transformers_s:.3f} s; "
        f"compared with {baseline.winner}",
        style="dim",
        soft_wrap=True,
    )
