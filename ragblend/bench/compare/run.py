"""Runs workloads on systems: each in a process of its own, all on the same prompts, in rounds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from ragblend.bench.compare.contestant import Contestant, gguf_of
from ragblend.bench.compare.peers.protocol import PeerSettings
from ragblend.bench.compare.report import CompareReport, CompareSettings
from ragblend.bench.compare.rounds import Rounds
from ragblend.bench.compare.systems import System
from ragblend.bench.compare.workloads import WORKLOADS, Material, require_workloads
from ragblend.bench.data import Example, handbook_questions, handbook_texts
from ragblend.bench.machine import describe_device
from ragblend.config import BlendSettings, fixed_ratio, require
from ragblend.errors import ConfigError, ContextOverflowError
from ragblend.models.load import choose_dtype, load_tokenizer
from ragblend.models.source import resolve_model
from ragblend.prompt import PromptTemplate

_CPU = torch.device("cpu")


def run(
    *,
    model: str | Path | None,
    systems: Sequence[System],
    workloads: Sequence[str],
    context: int,
    chunk_tokens: int = 256,
    prompts: int = 5,
    answer_tokens: int = 32,
    blend: BlendSettings | None = None,
    threads: int | None = None,
    dtype: str = "auto",
    examples: Sequence[Example] | None = None,
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> CompareReport:
    """Answer ``prompts`` prompts of each workload by each system, after one that warms up.

    examples: whose passages and questions are used (None: the example handbook). A system that cannot be
    installed or started, or that fails, is reported absent with the reason. threads: None for as many as torch
    takes. progress: called with the answers given and their total. note: is told what takes long.

    Raises ConfigError (settings, too little text), PathNotFoundError, ModelError, ContextOverflowError.
    """
    require(prompts >= 1, f"prompts must be at least 1, got {prompts}")
    require(answer_tokens >= 1, f"answer tokens must be at least 1, got {answer_tokens}")
    require(context >= 1, f"a context must have at least 1 token, got {context}")
    require(chunk_tokens >= 1, f"chunk tokens must be at least 1, got {chunk_tokens}")
    require_workloads(workloads)
    threads = threads or torch.get_num_threads()
    blend = blend or BlendSettings()
    source = resolve_model(model)
    tokenizer = load_tokenizer(source.path_or_id)
    require(tokenizer is not None, f"{source.name}: the model has no tokenizer, so it cannot read text")
    given = material(PromptTemplate(tokenizer), examples, context, chunk_tokens)
    asked = [WORKLOADS[name](given, prompts + 1) for name in workloads]
    longest = max(len(prompt) for workload in asked for prompt in workload.prompts) + answer_tokens
    _require_fitting(source.path_or_id, longest, answer_tokens)
    settings = peer_settings(source.path_or_id, blend, dtype, threads, -(-longest // 256) * 256)
    gguf = gguf_of(model)
    total = len(asked) * (prompts + 1) * len(systems)
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    with tempfile.TemporaryDirectory(prefix="ragblend-compare-") as name, ExitStack() as stack:
        team = [Contestant(system) for system in systems]
        for contestant in team:
            with contestant.absent_on_failure():
                contestant.start(settings, gguf, Path(name), stack, asked[0].prompts[0], note)
        rounds = Rounds(team, answer_tokens, Path(name), tokenizer, advance)
        rows = [row for workload in asked for row in rounds.rows(workload)]
    return CompareReport(
        rows=tuple(rows),
        systems=tuple(contestant.report() for contestant in team),
        settings=CompareSettings(context, chunk_tokens, prompts, answer_tokens, threads),
        machine=replace(describe_device(_CPU, source.name, getattr(torch, settings.dtype)), threads=threads),
        measurements=tuple(rounds.measurements),
    )


def peer_settings(model: str, blend: BlendSettings, dtype: str, threads: int, context: int) -> PeerSettings:
    """For a system that reads transformers' folders and is to reuse what it can, in no folder yet."""
    return PeerSettings(
        model=model,
        gguf="",
        dtype=str(choose_dtype(dtype, _CPU)).removeprefix("torch."),
        threads=threads,
        context=context,
        reuse=True,
        policy=blend.policy,
        ratio=fixed_ratio(blend.ratio),
        folder="",
    )


def material(template: PromptTemplate, examples: Sequence[Example] | None, context: int, chunk_tokens: int) -> Material:
    """What prompts are made of. Raises ConfigError where there is neither an example handbook nor ``examples``."""
    if examples is None:
        texts, questions = handbook_texts(), handbook_questions()
    else:
        texts = list(dict.fromkeys(passage.text for example in examples for passage in example.passages))
        questions = [(example.question, example.answers[0]) for example in examples]
    if not texts or not questions:
        raise ConfigError("there is no example handbook here: give questions with --data")
    return Material(template, texts, questions, context, chunk_tokens)


def _require_fitting(model: str, longest: int, answer_tokens: int) -> None:
    from transformers import AutoConfig

    limit = AutoConfig.from_pretrained(model, trust_remote_code=False).get_text_config().max_position_embeddings
    if longest > limit:
        raise ContextOverflowError(longest - answer_tokens, answer_tokens, limit)
