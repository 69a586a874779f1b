"""``ragblend ask``: an answer as it comes, its sources, and what the reuse saved."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ragblend.cli import start
from ragblend.cli.options import (
    Debug,
    Device,
    Dtype,
    EncryptionKeyFile,
    Json,
    LibraryFolder,
    Model,
    Namespace,
    Ratio,
    Remote,
    SharedNamespace,
)
from ragblend.cli.output import emit, excerpt, printable, stderr, stdout, table
from ragblend.cli.storage import store_settings
from ragblend.config import (
    DEFAULT_NAMESPACE,
    BlendSettings,
    GenerationSettings,
    as_ratio,
    require_count,
    require_question,
)
from ragblend.results import Answer, Source

if TYPE_CHECKING:
    from ragblend.answer import AnswerStream

_BLEND = BlendSettings()
_GENERATION = GenerationSettings()
_EXCERPT_WIDTH = 100
_USAGE = (
    "prompt_tokens",
    "cached_tokens",
    "recomputed_tokens",
    "computed_tokens",
    "cache_creation_tokens",
    "completion_tokens",
)


def ask(
    question: Annotated[str, typer.Argument(help="What to ask.", show_default=False)],
    library: LibraryFolder,
    k: Annotated[int, typer.Option("-k", help="How many chunks to answer from.")] = 6,
    policy: Annotated[
        str,
        typer.Option(help="Which tokens to recompute: full, prefix, none, leading, hkvd, query, drift or a plugin's."),
    ] = _BLEND.policy,
    ratio: Ratio = str(_BLEND.ratio),
    compare: Annotated[bool, typer.Option("--compare", help="Also answer by full prefill, and show both.")] = False,
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = _GENERATION.max_tokens,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = _GENERATION.temperature,
    top_p: Annotated[float, typer.Option(help="Sample from this much probability.")] = _GENERATION.top_p,
    top_k: Annotated[int, typer.Option(help="Sample from this many tokens; 0 is all.")] = _GENERATION.top_k,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.", show_default=False)] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End the answer before this text; may be repeated.", show_default=False)
    ] = None,
    overflow: Annotated[
        str, typer.Option(help="When the context is too short: refuse, or drop the lowest-scored chunks.")
    ] = _BLEND.overflow,
    order: Annotated[
        str,
        typer.Option(
            help="Where the best chunk stands: best-last (next to the question), best-first, or document: chunks as "
            "they stand in their documents, the best one's document last."
        ),
    ] = _BLEND.order,
    namespace: Namespace = DEFAULT_NAMESPACE,
    shared_namespace: SharedNamespace = "",
    remote: Remote = None,
    encryption_key_file: EncryptionKeyFile = None,
    model: Model = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Answer a question from a library.

    Without --model, the model is the one that the library was indexed with.
    """
    require_question(question)
    require_count("-k", k)
    settings = BlendSettings(policy, as_ratio(ratio), overflow, order=order)  # type: ignore[arg-type]  # checked there
    generation = GenerationSettings(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, stop=tuple(stop or ())
    )
    takes_ratio = start.find_policy(policy).takes_ratio
    heading = f"{policy}, ratio {ratio}" if takes_ratio else policy
    automatic = takes_ratio and settings.ratio == "auto"
    store = store_settings(remote=remote, encryption_key_file=encryption_key_file, shared_namespace=shared_namespace)
    with start.open_library(library, namespace, model, device, dtype, json=json, read_only=True, store=store) as opened:

        def run(policy: str) -> AnswerStream:
            return opened.stream(
                question,
                k,
                policy=policy,
                ratio=settings.ratio,
                generation=generation,
                overflow=settings.overflow,
                order=settings.order,
            )

        if json:
            answer = run(policy).complete()
            emit(as_json(answer, run("full").complete() if compare else None))
        elif compare:
            answer = show(run(policy), heading=heading)
            print_summary(answer, show(run("full"), heading="full prefill"), automatic=automatic)
        else:
            print_summary(show(run(policy)), None, automatic=automatic)


def as_json(answer: Answer, full: Answer | None) -> dict[str, Any]:
    """The command's JSON object; ``dropped`` is there when the context was too short for all chunks."""
    result: dict[str, Any] = {
        "answer": answer.text,
        "sources": [_source(source) for source in answer.sources],
        "usage": {name: getattr(answer.usage, name) for name in _USAGE},
        "timings": answer.timings,
        "policy": answer.policy,
        "ratio": answer.ratio,
        "model": answer.model,
        "hits": answer.hits,
        "misses": answer.misses,
        "matched_tokens": answer.matched_tokens,
    }
    if answer.dropped:
        result["dropped"] = [_source(source) for source in answer.dropped]
    if full is not None:
        result["full"] = {"answer": full.text, "ttft_s": full.timings.ttft_s}
        result["speedup"] = _speedup(answer, full)
    return result


def show(stream: AnswerStream, heading: str = "") -> Answer:
    """Print the answer's text as it comes."""
    out = stdout()
    if heading:
        out.print(f"{heading}:", style="dim", markup=False)
    started = False
    with stream:
        for piece in stream:
            text = printable(piece if started else piece.lstrip())
            started = started or bool(text)
            out.file.write(text)
            out.file.flush()
    out.print("\n" if heading else "")
    return stream.answer


def print_summary(answer: Answer, full: Answer | None, *, automatic: bool) -> None:
    """The sources, what was left out, and the line of timings; with the ratio where the request chose it."""
    out = stdout()
    if full is not None:
        same = "the answers are the same" if answer.text == full.text else "the answers differ"
        out.print(f"[dim]{same}[/dim]")
    if answer.sources:
        out.print(table(["", "document", "chunk", "score", "text"], _source_rows(answer.sources), cut_last=True))
    for source in answer.dropped:
        stderr().print(f"left out, the context is full: {_where(source)} #{source.chunk}", markup=False, soft_wrap=True)
    chosen = f" at ratio {answer.ratio:g}" if automatic else ""
    out.print(f"{timing_line(answer, full)}{chosen}", style="green", soft_wrap=True)


def timing_line(answer: Answer, full: Answer | None) -> str:
    """For example ``first token 0.41 s (full prefill 3.2 s, 7.8x) · 3,584 tokens reused · 358 recomputed``."""
    compared = f" (full prefill {full.timings.ttft_s:.2g} s, {_speedup(answer, full):.1f}x)" if full else ""
    usage = answer.usage
    return (
        f"first token {answer.timings.ttft_s:.2f} s{compared} · "
        f"{usage.cached_tokens:,} tokens reused · {usage.recomputed_tokens:,} recomputed"
    )


def _speedup(answer: Answer, full: Answer) -> float:
    return full.timings.ttft_s / answer.timings.ttft_s if answer.timings.ttft_s else math.inf


def _source(source: Source) -> dict[str, Any]:
    return {"document": source.document, "chunk": source.chunk, "score": source.score, "text": source.text}


def _source_rows(sources: tuple[Source, ...]) -> list[tuple[str, ...]]:
    return [
        (str(number), _where(source), str(source.chunk), f"{source.score:.2f}", excerpt(source.text, _EXCERPT_WIDTH))
        for number, source in enumerate(sources, start=1)
    ]


def _where(source: Source) -> str:
    """The document's path as seen from the working folder, if it is below it."""
    path = Path(source.document)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else source.document
