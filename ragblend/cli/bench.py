"""``ragblend bench``: measurements on this machine, with the user's own model and data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ragblend.cli import start
from ragblend.cli.fetch import offer_to_fetch
from ragblend.cli.options import Debug, Device, Dtype, Json, Model, Ratio
from ragblend.cli.output import emit, stderr, stdout, table
from ragblend.config import CODECS, BlendSettings, as_ratio, fixed_ratio, require
from ragblend.errors import ConfigError

if TYPE_CHECKING:
    from ragblend.bench.baseline import Baseline
    from ragblend.bench.machine import Machine

app = typer.Typer(help="Measure on this machine, with your model and your data.")

_RATIO = str(BlendSettings().ratio)
_POLICY = BlendSettings().policy
_PEERS = "ragblend,transformers,transformers-prefix,llama.cpp,llama.cpp-quantised,vllm"
_KINDS = "needle,tracing,two-hop,ordering,counting,versions"
_WORKLOADS = "reordered,conversation,system,fresh"
_SHAPES = "llama-3-8b,qwen2.5-14b,yi-34b"
_LENGTHS = "3072,8192"
_POLICIES = "full,prefix,none,leading,hkvd,query"
Policies = Annotated[str, typer.Option(help="Policies, separated by commas; one may have its own ratio: query@0.1.")]
Data = Annotated[Path | None, typer.Option(help="JSON lines with id, question, answers and passages (title, text).")]


@app.command("ttft")
def ttft(
    contexts: Annotated[str, typer.Option(help="Lengths of the context in tokens, separated by commas.")] = "1024,4096",
    policies: Policies = _POLICIES,
    ratio: Ratio = _RATIO,
    repeats: Annotated[int, typer.Option(help="Rounds that are counted, after one to warm up.")] = 3,
    chunk_tokens: Annotated[int, typer.Option(help="Length of a chunk.")] = 256,
    data: Data = None,
    storage_mb_s: Annotated[
        float | None, typer.Option(min=0.001, help="Load as from storage of so many MB/s.", show_default=False)
    ] = None,
    model: Model = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure the time to the first token, by context length and policy, on stored chunks.

    The text is that of the passages in --data, else the example handbook. "of bound": the first token's time by the
    longer of loading and computing. "of floor": the time with loaded KV by the least that computing its rows takes.
    """
    lengths = [_whole_number(word) for word in contexts.split(",")]
    names = policies.split(",")
    require(repeats >= 1, f"repeats must be at least 1, got {repeats}")
    from ragblend.bench.data import read_examples
    from ragblend.bench.variants import as_variants

    as_variants(names, as_ratio(ratio))
    texts = [passage.text for example in read_examples(data) for passage in example.passages] if data else None
    engine = start.start_engine(model, device, dtype, json=json)
    from ragblend.bench.ttft import run

    with _progress("rounds") as advance:
        report = run(
            engine,
            contexts=lengths,
            policies=names,
            ratio=as_ratio(ratio),
            repeats=repeats,
            chunk_tokens=chunk_tokens,
            texts=texts,
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
            f"{row.ratio:g}",
            f"{row.ttft_s:.3f} s",
            f"{row.speedup_vs_full:.1f}x",
            f"{row.computed_tokens:,} of {row.prompt_tokens:,}",
            f"{row.load_s:.3f} s",
            f"{row.of_bound:.2f}",
            "" if row.of_floor is None else f"{row.of_floor:.2f}",
        )
        for row in report.rows
    ]
    columns = ["context", "policy", "ratio", "first token", "vs full", "computed tokens"]
    stdout().print(table([*columns, "loading", "of bound", "of floor"], rows))
    for length, baseline in zip(lengths, report.baseline, strict=True):
        _print_baseline(f"full prefill at {length:,}", baseline)
    _print_machine(report.machine)


@app.command("quality")
def quality(
    data: Annotated[Path, typer.Option(help="JSON lines with id, question, answers and passages (title, text).")],
    policies: Policies = _POLICIES,
    ratio: Ratio = _RATIO,
    limit: Annotated[int | None, typer.Option(help="Measure on the first so many questions only.")] = None,
    model: Model = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure the answers, and how close each policy comes to full prefill, on questions with known answers."""
    names = policies.split(",")
    from ragblend.bench.data import read_examples
    from ragblend.bench.variants import as_variants

    as_variants(names, as_ratio(ratio))
    read_examples(data, limit)
    engine = start.start_engine(model, device, dtype, json=json)
    from ragblend.bench.quality import run

    with _progress("questions") as advance:
        report = run(engine, data=data, policies=names, ratio=as_ratio(ratio), limit=limit, progress=advance)
    if json:
        summary: dict[str, Any] = asdict(report)
        del summary["measurements"]  # every policy on every question: for scripts, which call run themselves
        emit(summary)
        return
    rows = [
        (
            row.policy,
            f"{row.ratio:g}",
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
    _print_machine(report.machine)


@app.command("compare")
def compare(
    peers: Annotated[str, typer.Option(help="Systems, separated by commas.")] = _PEERS,
    workloads: Annotated[str, typer.Option(help="Workloads, separated by commas.")] = _WORKLOADS,
    context: Annotated[int, typer.Option(help="Tokens of text in each prompt.")] = 4096,
    chunk_tokens: Annotated[int, typer.Option(help="Length of a chunk.")] = 256,
    repeats: Annotated[int, typer.Option(help="Prompts of each workload that are counted, after one to warm up.")] = 5,
    answer_tokens: Annotated[int, typer.Option(help="How long an answer may be.")] = 32,
    policy: Annotated[str, typer.Option(help="Ours.")] = _POLICY,
    ratio: Ratio = _RATIO,
    threads: Annotated[
        int | None, typer.Option(help="Threads of every system (default: as many as torch takes).", show_default=False)
    ] = None,
    data: Data = None,
    model: Model = None,
    dtype: Dtype = "auto",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Compare with transformers, llama.cpp and vLLM: the same weights, prompts and threads, on this machine's CPU.

    The other systems are installed into environments of their own in the user cache, vLLM's takes 3.5 GB. One that
    cannot be installed or fails is reported absent. The text is that of the passages in --data, else the example
    handbook.
    """
    require(repeats >= 1, f"repeats must be at least 1, got {repeats}")
    require(threads is None or threads >= 1, f"threads must be at least 1, got {threads}")
    from ragblend.bench.compare.systems import systems_named
    from ragblend.bench.compare.workloads import require_workloads

    systems = systems_named(peers.split(","))
    names = [name.strip() for name in workloads.split(",")]
    require_workloads(names)
    start.require_policy(policy)
    blend = BlendSettings(policy=policy, ratio=as_ratio(ratio))
    from ragblend.bench.data import read_examples

    examples = read_examples(data) if data else None
    if not model:
        offer_to_fetch(json=json)
    from ragblend.bench.compare.report import system_table, workload_table
    from ragblend.bench.compare.run import run

    with _progress("answers") as advance:
        report = run(
            model=model,
            systems=systems,
            workloads=names,
            context=context,
            chunk_tokens=chunk_tokens,
            prompts=repeats,
            answer_tokens=answer_tokens,
            blend=blend,
            threads=threads,
            dtype=dtype,
            examples=examples,
            progress=advance,
            note=lambda words: stderr().print(words, style="dim", soft_wrap=True),
        )
    if json:
        emit(report)
        return
    stdout().print(table(*workload_table(report)))
    stdout().print(table(*system_table(report)))
    _print_machine(report.machine)


@app.command("tasks")
def tasks(
    out: Annotated[Path, typer.Option(help="The file to write, for bench quality --data.")],
    seed: Annotated[int, typer.Option(help="Another seed makes other questions.")] = 0,
    count: Annotated[int, typer.Option(help="Questions of each kind.")] = 20,
    kinds: Annotated[str, typer.Option(help="Kinds, separated by commas.")] = _KINDS,
    passages: Annotated[int, typer.Option(help="Passages of each question.")] = 8,
    words: Annotated[int, typer.Option(help="About how many words a passage has.")] = 120,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make questions that only several passages together answer. Needs no model."""
    from ragblend.bench.tasks import make_examples, write_examples

    names = [kind.strip() for kind in kinds.split(",")]
    examples = make_examples(seed=seed, count=count, kinds=names, passages=passages, words=words)
    write_examples(examples, out)
    if json:
        emit({"out": str(out), "examples": len(examples), "kinds": names, "seed": seed})
        return
    stdout().print(f"{len(examples):,} questions in {out}", markup=False, soft_wrap=True)


@app.command("store")
def store(
    codecs: Annotated[str, typer.Option(help="Codecs, separated by commas.")] = ",".join(CODECS),
    tokens: Annotated[int, typer.Option(help="Tokens that are written, read and placed.")] = 4096,
    chunk_tokens: Annotated[int, typer.Option(help="Length of a chunk.")] = 256,
    repeats: Annotated[int, typer.Option(help="Rounds that are counted, after one to warm up.")] = 3,
    data: Data = None,
    policies: Policies = "none,query",
    ratio: Ratio = _RATIO,
    limit: Annotated[int | None, typer.Option(help="Ask the first so many questions only.")] = None,
    model: Model = None,
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
    from ragblend.bench.variants import as_variants

    as_codecs(names)
    share = fixed_ratio(as_ratio(ratio))
    as_variants(asked, share)
    if data:
        read_examples(data, limit)
    engine = start.start_engine(model, device, dtype, json=json)
    with _progress("steps") as advance:
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
    _print_machine(report.machine)


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
    lengths = [_whole_number(word) for word in contexts.split(",")]
    from typing import cast

    from ragblend.bench.gpu.kernels import run
    from ragblend.bench.gpu.report import kernel_table
    from ragblend.kernels.implementation import Implementation
    from ragblend.models.load import choose_device, choose_dtype

    where = choose_device(device)
    with _progress("shapes") as advance:
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
    _print_machine(report.machine)


def _whole_number(word: str) -> int:
    try:
        return int(word)
    except ValueError as error:
        raise ConfigError(f"contexts must be whole numbers separated by commas, got {word!r}") from error


def _print_baseline(title: str, baseline: Baseline) -> None:
    stdout().print(
        f"{title}: ragblend {baseline.ragblend_full_s:.3f} s, transformers {baseline.transformers_s:.3f} s; "
        f"compared with {baseline.winner}",
        style="dim",
        soft_wrap=True,
    )


def _print_machine(machine: Machine) -> None:
    stdout().print(
        f"{machine.model} in {machine.dtype} on {machine.device}, {machine.threads} threads of {machine.cpu}; "
        f"torch {machine.torch}, transformers {machine.transformers}"
        f"{f', triton {machine.triton}' if machine.triton else ''}",
        style="dim",
        soft_wrap=True,
        markup=False,
    )


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr; call what is given with the number done and the total."""
    console = stderr()
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(what, total=None)
    with bar:
        yield lambda done, total: bar.update(task, completed=done, total=total)
