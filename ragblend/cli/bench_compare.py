"""``ragblend bench compare`` and ``throughput``: what an application would notice."""

from __future__ import annotations

from typing import Annotated

import typer

from ragblend.cli import start
from ragblend.cli.fetch import offer_to_fetch
from ragblend.cli.measuring import RATIO, Data, Policies, print_machine, progress_bar
from ragblend.cli.options import Debug, Device, Dtype, FixedRatio, Json, MeasuredModel
from ragblend.cli.output import emit, printable, stderr, stdout, table
from ragblend.config import BlendSettings, as_ratio, fixed_ratio, require

_POLICY = BlendSettings().policy
_PEERS = "ragblend,transformers,transformers-prefix,llama.cpp,llama.cpp-quantised,vllm"
_WORKLOADS = "reordered,conversation,system,fresh"


def compare(
    peers: Annotated[str, typer.Option(help="Systems, separated by commas.")] = _PEERS,
    workloads: Annotated[str, typer.Option(help="Workloads, separated by commas.")] = _WORKLOADS,
    context: Annotated[int, typer.Option(help="Tokens of text in each prompt.")] = 4096,
    chunk_tokens: Annotated[int, typer.Option(help="Length of a chunk.")] = 256,
    repeats: Annotated[int, typer.Option(help="Prompts of each workload that are counted, after one to warm up.")] = 5,
    answer_tokens: Annotated[int, typer.Option(help="How long an answer may be.")] = 32,
    policy: Annotated[str, typer.Option(help="Ours.")] = _POLICY,
    ratio: FixedRatio = RATIO,
    threads: Annotated[
        int | None, typer.Option(help="Threads of every system (default: as many as torch takes).", show_default=False)
    ] = None,
    data: Data = None,
    model: MeasuredModel = None,
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
    start.find_policy(policy)
    blend = BlendSettings(policy=policy, ratio=fixed_ratio(as_ratio(ratio)))
    from ragblend.bench.data import read_examples

    examples = read_examples(data) if data else None
    if not model:
        offer_to_fetch(json=json)
    from ragblend.bench.compare.report import system_lines, workload_table
    from ragblend.bench.compare.run import run

    with progress_bar("answers") as advance:
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
    stdout().print("Times sooner than transformers' full prefill, to which the answers are compared.", style="dim")
    for line in system_lines(report):
        stdout().print(printable(line), soft_wrap=True, markup=False)
    print_machine(report.machine)


def throughput(
    policies: Policies = "full,prefix,query",
    ratio: FixedRatio = RATIO,
    requests: Annotated[int, typer.Option(help="Questions in the stream.")] = 200,
    exponent: Annotated[float, typer.Option(help="Of Zipf's law: 0 asks every question equally often.")] = 1.0,
    chunks: Annotated[int, typer.Option("-k", help="Chunks of a question.")] = 6,
    answer_tokens: Annotated[int, typer.Option(help="How long an answer may be.")] = 16,
    model: MeasuredModel = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure how many questions a second are answered while the first token comes soon, over the example handbook."""
    require(requests >= 1, f"requests must be at least 1, got {requests}")
    require(answer_tokens >= 1, f"answer tokens must be at least 1, got {answer_tokens}")
    require(chunks >= 1, f"k must be at least 1, got {chunks}")
    from ragblend.bench.variants import as_fixed_variants, ratio_shown

    names = policies.split(",")
    as_fixed_variants(names, fixed_ratio(as_ratio(ratio)))
    engine = start.start_engine(model, device, dtype, json=json)
    from ragblend.bench.throughput import run

    with progress_bar("requests") as advance:
        report = run(
            engine,
            policies=names,
            ratio=as_ratio(ratio),
            requests=requests,
            exponent=exponent,
            k=chunks,
            answer_tokens=answer_tokens,
            progress=advance,
        )
    if json:
        emit(report)
        return
    rows = [
        (
            row.policy,
            ratio_shown(row.policy, row.ratio),
            f"{row.requests_per_s:g}",
            f"{row.ttft_p50_s:.2f} s",
            f"{row.ttft_p95_s:.2f} s",
        )
        for row in report.rows
    ]
    stdout().print(table(["policy", "ratio", "requests/s", "first token (median)", "95%"], rows))
    bounds = [
        (row.policy, ratio_shown(row.policy, row.ratio), f"{row.bound_s:g} s", f"{row.requests_per_s:.2f}")
        for row in report.bounds
    ]
    stdout().print(table(["policy", "ratio", "95% within", "requests/s"], bounds))
    print_machine(report.machine)
