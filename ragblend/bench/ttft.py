"""``ragblend bench ttft``: time to the first token, by context length and policy, on stored chunks."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ragblend.bench.baseline import Baseline, judge, transformers_attention, transformers_prefill
from ragblend.bench.chunks import cut
from ragblend.bench.machine import Machine, describe_machine
from ragblend.bench.variants import Variant, as_variants
from ragblend.config import DEFAULT_NAMESPACE, BlendSettings, GenerationSettings, require
from ragblend.engine import Engine
from ragblend.prompt import Prompt, Segment
from ragblend.results import Answer
from ragblend.store.base import KVStore
from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore

QUESTION = "What is the most important thing that these documents say?"
_FULL = BlendSettings(policy="full", ratio=1.0)
_ONE_TOKEN = GenerationSettings(max_tokens=1)


@dataclass(frozen=True, slots=True)
class TtftRow:
    """One policy at one context length (chunk tokens). ttft_s: the median over the rounds.

    speedup_vs_full: the median over the rounds of the baseline's time by the policy's.
    computed_tokens: rows computed, of the prompt's ``prompt_tokens``.
    """

    context: int
    policy: str
    ratio: float
    ttft_s: float
    speedup_vs_full: float
    computed_tokens: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class TtftReport:
    """baseline: per context length, in the order of the rows."""

    rows: tuple[TtftRow, ...]
    baseline: tuple[Baseline, ...]
    machine: Machine


def run(
    engine: Engine,
    *,
    contexts: Sequence[int],
    policies: Sequence[str],
    ratio: float,
    repeats: int,
    chunk_tokens: int = 256,
    texts: Sequence[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TtftReport:
    """Measure every policy (a name, or ``name@ratio``) at every context length.

    Chunks of ``texts`` (None: the example handbook) are put into a store on the disk and read back
    through the page cache, as in a library that is in use. Each round runs everything once, so that
    what disturbs the machine meets all alike; one round to warm up is not counted.
    progress: called with the rounds done and their total.

    Raises ConfigError for unknown policies, lengths below 1 and too little text; ContextOverflowError.
    """
    require(repeats >= 1, f"repeats must be at least 1, got {repeats}")
    require(bool(contexts), "name at least one context length")
    require(min(contexts) >= 1, f"a context must have at least 1 token, got {min(contexts)}")
    require(chunk_tokens >= 1, f"chunk tokens must be at least 1, got {chunk_tokens}")
    variants = as_variants(policies, ratio)
    chunks = [cut(engine.template, texts, context, chunk_tokens) for context in contexts]
    rows: list[TtftRow] = []
    baselines: list[Baseline] = []
    total = (repeats + 1) * len(contexts)
    for number, context in enumerate(contexts):
        with _stored(engine, chunks[number]) as (store, segments):
            measured = _Rounds(engine, engine.template.build(segments, QUESTION), store, variants)
            for done in range(repeats + 1):
                measured.round(done)
                if progress is not None:
                    progress(number * (repeats + 1) + done + 1, total)
        rows.extend(measured.rows(context))
        baselines.append(measured.baseline())
    return TtftReport(tuple(rows), tuple(baselines), describe_machine(engine))


class _Rounds:
    """Timings of one prompt: what ran in each round."""

    def __init__(self, engine: Engine, prompt: Prompt, store: KVStore, variants: Sequence[Variant]) -> None:
        self.engine = engine
        self.prompt = prompt
        self.store = store
        self.settings = [BlendSettings(variant.policy.name, variant.ratio) for variant in variants]
        self.own: list[float] = []
        self.theirs: list[float] = []
        self.answers: list[list[Answer]] = [[] for _ in variants]
        self.attention = ""

    def round(self, number: int) -> None:
        """Run everything once; round 0 warms up."""
        full = self._answer(_FULL)
        answers = [full if settings.policy == _FULL.policy else self._answer(settings) for settings in self.settings]
        with transformers_attention(self.engine.adapter) as self.attention:
            theirs = transformers_prefill(self.engine.adapter, self.prompt.token_ids).seconds
        if number > 0:
            self.own.append(full.timings.ttft_s)
            self.theirs.append(theirs)
            for collected, answer in zip(self.answers, answers, strict=True):
                collected.append(answer)

    def baseline(self) -> Baseline:
        return judge([len(self.prompt)], self.own, self.theirs, self.attention)

    def rows(self, context: int) -> Iterator[TtftRow]:
        fastest = self.own if self.baseline().ragblend_won else self.theirs
        for settings, answers in zip(self.settings, self.answers, strict=True):
            seconds = [answer.timings.ttft_s for answer in answers]
            yield TtftRow(
                context=context,
                policy=settings.policy,
                ratio=settings.ratio,
                ttft_s=statistics.median(seconds),
                speedup_vs_full=statistics.median(full / own for full, own in zip(fastest, seconds, strict=True)),
                computed_tokens=answers[0].usage.computed_tokens,
                prompt_tokens=len(self.prompt),
            )

    def _answer(self, settings: BlendSettings) -> Answer:
        return self.engine.generate(self.prompt, store=self.store, blend=settings, generation=_ONE_TOKEN, cache="off")


@contextmanager
def _stored(engine: Engine, chunks: Sequence[tuple[int, ...]]) -> Iterator[tuple[KVStore, list[Segment]]]:
    """The chunks' KV in a store in a temporary folder, and their segments."""
    segments = [Segment("chunk", ids, engine.chunk_key(DEFAULT_NAMESPACE, ids)) for ids in chunks]
    with (
        tempfile.TemporaryDirectory(prefix="ragblend-bench-") as folder,
        closing(Catalogue(Path(folder) / "catalogue.db")) as catalogue,
        closing(DiskStore(Path(folder), catalogue)) as store,
    ):
        for segment, kv in zip(segments, engine.prefill(chunks), strict=True):
            store.put(segment.key or "", kv)
        yield store, segments
