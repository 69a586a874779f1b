"""``ragblend bench growth`` and ``tasks``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ragblend.cli.fetch import offer_to_fetch
from ragblend.cli.measuring import progress_bar, whole_numbers
from ragblend.cli.options import Debug, Dtype, Json, MeasuredModel
from ragblend.cli.output import emit, megabytes, stdout, table
from ragblend.config import require
from ragblend.errors import ConfigError

_SIZES = "100,1000,10000,100000"
_CONTEXTS = "1024,2048,4096,7680"
_CHUNKS = "1,2,4,8,16,32"
_CONTEXT_OF_CHUNKS = 4096
_KINDS = "needle,tracing,two-hop,ordering,counting,versions"


def growth(
    library: Annotated[str, typer.Option(help="Chunks of a library, separated by commas; empty for none.")] = _SIZES,
    contexts: Annotated[str, typer.Option(help="Tokens of context, separated by commas; empty for none.")] = _CONTEXTS,
    chunks: Annotated[str, typer.Option(help="Chunks of a question of 4,096 tokens; empty for none.")] = _CHUNKS,
    processes: Annotated[str, typer.Option(help="Processes that answer at once; empty for none.")] = "1,2",
    windows: Annotated[int, typer.Option(help="Vectors of a chunk besides its own.")] = 5,
    repeats: Annotated[int, typer.Option(help="Prompts that are counted, after one to warm up.")] = 3,
    plots: Annotated[
        Path | None, typer.Option(help="A folder for a picture of each curve.", show_default=False)
    ] = None,
    note: Annotated[str, typer.Option(help="How the machine was: kept with the figures.")] = "",
    model: MeasuredModel = None,
    dtype: Dtype = "auto",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure what a library and a request cost as they grow. The library's KV and vectors are made up."""
    sizes, lengths = whole_numbers(library, "chunks of a library"), whole_numbers(contexts, "contexts")
    counts, at_once = whole_numbers(chunks, "chunks of a question"), whole_numbers(processes, "processes")
    require(bool(sizes or lengths or counts or at_once), "nothing to measure: all lists are empty")
    require(repeats >= 1, f"repeats must be at least 1, got {repeats}")
    shortest = min(lengths, default=1)
    require(shortest >= 1, f"a context must have at least 1 token, got {shortest}")
    for count in counts:
        require(1 <= count <= _CONTEXT_OF_CHUNKS, f"chunks must be 1 to {_CONTEXT_OF_CHUNKS}, got {count}")
    require(min(at_once, default=1) >= 1, f"processes must be at least 1, got {min(at_once, default=1)}")
    if plots:
        from ragblend.bench.growth.run import figure_class

        figure_class()
        _make_folder(plots)
    if (lengths or counts or at_once) and not model:
        offer_to_fetch(json=json)
    import torch

    from ragblend.bench.growth.library import grow_library
    from ragblend.bench.growth.requests import grow_processes, grow_requests
    from ragblend.bench.growth.run import GrowthReport, plot
    from ragblend.bench.machine import describe_device
    from ragblend.models.load import choose_dtype

    machine = describe_device(torch.device("cpu"), model or "", choose_dtype(dtype, torch.device("cpu")))
    with progress_bar("chunks") as advance:
        libraries = grow_library(sizes, windows=windows, progress=advance) if sizes else []
    with progress_bar("requests") as advance:
        by_context = [(length, -(-length // 256)) for length in lengths]
        points = [*by_context, *((_CONTEXT_OF_CHUNKS, count) for count in counts)]
        requests = grow_requests(points, model=model, prompts=repeats, dtype=dtype, progress=advance)
    report = GrowthReport(
        library=tuple(libraries),
        contexts=tuple(requests[: 2 * len(by_context)]),
        chunks=tuple(requests[2 * len(by_context) :]),
        processes=tuple(grow_processes(at_once, model=model, dtype=dtype)) if at_once else (),
        note=note,
        machine=machine,
    )
    drawn = plot(report, plots) if plots else []
    if json:
        emit(report)
        return
    library_rows = [
        (
            f"{row.chunks:,}",
            f"{row.vectors:,}",
            *(f"{1000 * seconds:,.1f} ms" for seconds in (row.open_s, row.first_search_s, row.search_s, row.lookup_s)),
            megabytes(row.memory_bytes),
            megabytes(row.index_bytes + row.catalogue_bytes),
        )
        for row in report.library
    ]
    columns = ["chunks", "vectors", "open", "first search", "search", "lookup", "memory", "disk without KV"]
    stdout().print(table(columns, library_rows))
    request_rows = [
        (row.system, f"{row.context:,}", str(row.chunks), f"{row.ttft_s:.3f} s", megabytes(row.peak_bytes))
        for row in (*report.contexts, *report.chunks)
    ]
    stdout().print(table(["system", "context", "chunks", "first token", "memory"], request_rows))
    process_rows = [
        (str(row.processes), f"{row.ttft_s:.3f} s", f"{row.requests_per_s:.2f}", megabytes(row.peak_bytes))
        for row in report.processes
    ]
    stdout().print(table(["processes", "first token", "requests/s", "memory"], process_rows))
    for path in drawn:
        stdout().print(str(path), markup=False, soft_wrap=True)


def _make_folder(folder: Path) -> None:
    """Before anything is measured for it. Raises ConfigError where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror}): name another folder") from error


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
