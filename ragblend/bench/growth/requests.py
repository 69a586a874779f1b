"""Requests that grow: the time to the first token by context, by number of chunks, and by processes at once."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch

from ragblend.bench.compare import run as compare
from ragblend.bench.compare.environments import process_environment
from ragblend.bench.compare.peers.protocol import Reply
from ragblend.bench.compare.process import PeerProcess
from ragblend.bench.compare.systems import REFERENCE, SYSTEMS
from ragblend.bench.compare.workloads import reordered
from ragblend.bench.data import Example
from ragblend.config import BlendSettings, require
from ragblend.models.load import load_tokenizer
from ragblend.models.source import resolve_model
from ragblend.prompt import Prompt, PromptTemplate

OURS = "ragblend"


@dataclass(frozen=True, slots=True)
class RequestRow:
    """The same documents in a new order each time: ``context`` tokens in ``chunks`` chunks. ttft_s: the median.

    peak_bytes: of the system's process. prepare_s: what indexing the documents took.
    """

    system: str
    context: int
    chunks: int
    ttft_s: float
    peak_bytes: int
    prepare_s: float


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """``processes`` engines that share the threads and answer at once. requests_per_s: of all together."""

    processes: int
    threads_each: int
    ttft_s: float
    requests_per_s: float
    peak_bytes: int


def grow_requests(
    points: Sequence[tuple[int, int]],
    *,
    model: str | Path | None = None,
    prompts: int = 3,
    blend: BlendSettings | None = None,
    threads: int | None = None,
    dtype: str = "auto",
    examples: Sequence[Example] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[RequestRow]:
    """Ours and transformers' full prefill at each point, a context in tokens and a number of chunks.

    Raises as ``ragblend.bench.compare.run.run``.
    """
    rows = []
    for done, (context, chunks) in enumerate(points):
        require(1 <= chunks <= context, f"chunks must be 1 to {context} for {context} tokens, got {chunks}")
        report = compare.run(
            model=model,
            systems=[SYSTEMS[OURS], SYSTEMS[REFERENCE]],
            workloads=["reordered"],
            context=context,
            chunk_tokens=-(-context // chunks),
            prompts=prompts,
            answer_tokens=1,
            blend=blend,
            threads=threads,
            dtype=dtype,
            examples=examples,
        )
        rows += [
            RequestRow(row.system, context, chunks, row.ttft_s, row.peak_bytes, row.prepare_s) for row in report.rows
        ]
        if progress is not None:
            progress(done + 1, len(points))
    return rows


def grow_processes(
    counts: Sequence[int],
    *,
    model: str | Path | None = None,
    context: int = 2048,
    chunk_tokens: int = 256,
    prompts: int = 8,
    blend: BlendSettings | None = None,
    threads: int | None = None,
    dtype: str = "auto",
    examples: Sequence[Example] | None = None,
) -> list[ProcessRow]:
    """Each number of processes answers ``prompts`` prompts in each, all at the same time.

    Raises ConfigError, PathNotFoundError, ModelError, PeerError.
    """
    require(bool(counts) and min(counts) >= 1, "processes must be at least 1")
    blend = blend or BlendSettings()
    source = resolve_model(model)
    template = PromptTemplate(load_tokenizer(source.path_or_id))
    workload = reordered(compare.material(template, examples, context, chunk_tokens), prompts + 1)
    longest = max(len(prompt) for prompt in workload.prompts)
    cores = threads or torch.get_num_threads()
    rows = []
    for count in counts:
        each = max(1, cores // count)
        with tempfile.TemporaryDirectory(prefix="ragblend-growth-") as name, ExitStack() as stack:
            environment = process_environment(SYSTEMS[OURS], Path(sys.executable), each, Path(name))
            settings = replace(compare.peer_settings(source.path_or_id, blend, dtype, each, longest + 1), folder=name)
            running = []
            for number in range(count):
                log = Path(name) / f"{number}.log"
                process = PeerProcess(Path(sys.executable), SYSTEMS[OURS].module, environment, settings, log)
                running.append(stack.enter_context(process))
            for process in running:
                process.prepare(workload.chunks)
                process.answer(workload.prompts[0], 1)
            with ThreadPoolExecutor(count) as at_once:
                began = time.perf_counter()
                replies = [*at_once.map(lambda process: _answers(process, workload.prompts[1:]), running)]
                seconds = time.perf_counter() - began
            ttft = [reply.ttft_s for of_process in replies for reply in of_process]
            peak = sum(process.peak_memory() for process in running)
            rows.append(ProcessRow(count, each, median(ttft), len(ttft) / seconds, peak))
    return rows


def _answers(process: PeerProcess, prompts: Sequence[Prompt]) -> list[Reply]:
    return [process.answer(prompt, 1) for prompt in prompts]
