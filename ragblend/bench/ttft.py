"""``ragblend bench ttft``: time to the first token, by context length and policy, on stored chunks."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from ragblend.bench.baseline import Baseline, judge, transformers_attention, transformers_prefill
from ragblend.bench.chunks import cut
from ragblend.bench.floor import Floor
from ragblend.bench.machine import Machine, describe_machine
from ragblend.bench.storage import SlowDiskStore
from ragblend.bench.stores import in_memory, temporary_store
from ragblend.bench.variants import Variant, as_variants
from ragblend.blend.blender import blend
from ragblend.blend.policies import Policy
from ragblend.config import DEFAULT_NAMESPACE, BlendSettings, GenerationSettings, Ratio, require
from ragblend.engine import Engine
from ragblend.prompt import Prompt, Segment
from ragblend.results import Answer
from ragblend.store.base import KVStore
from ragblend.store.disk import DiskStore

QUESTION = "What is the most important thing that these documents say?"
_FULL = BlendSettings(policy="full", ratio=1.0)
_ONE_TOKEN = GenerationSettings(max_tokens=1)


@dataclass(frozen=True, slots=True)
class TtftRow:
    """One policy at one context length (chunk tokens). ttft_s: the median over the rounds.

    speedup_vs_full: the median over the rounds of the baseline's time by the policy's.
    computed_tokens: rows computed, of the prompt's ``prompt_tokens``. ratio: what was used, also where it was ``auto``.
    load_s: what loading took, most of it while something was computed. compute_s: ttft_s with the chunks' KV in
    memory. of_bound: ttft_s by the longer of the two, which is all it takes where the one hides behind the other.
    floor_s: the least that computing those rows takes (``floor.Floor``). of_floor: compute_s by it. Both are None
    where nothing is reused.
    """

    context: int
    policy: str
    ratio: float
    ttft_s: float
    speedup_vs_full: float
    computed_tokens: int
    prompt_tokens: int
    load_s: float
    compute_s: float
    of_bound: float
    floor_s: float | None
    of_floor: float | None


@dataclass(frozen=True, slots=True)
class TtftReport:
    """baseline: per context length, in the order of the rows. codec: of the chunks' KV.

    storage_mb_s: of the storage that was simulated.
    """

    codec: str
    storage_mb_s: float | None
    rows: tuple[TtftRow, ...]
    baseline: tuple[Baseline, ...]
    machine: Machine


def run(
    engine: Engine,
    *,
    contexts: Sequence[int],
    policies: Sequence[str],
    ratio: Ratio,
    repeats: int,
    chunk_tokens: int = 256,
    texts: Sequence[str] | None = None,
    codec: str = "raw",
    storage_mb_s: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TtftReport:
    """Measure every policy (a name, or ``name@ratio``) at every context length.

    Chunks of ``texts`` (None: the example handbook) are put into a store on the disk and read back
    through the page cache, as in a library that is in use. Each round runs everything once, so that
    what disturbs the machine meets all alike; one round to warm up is not counted.
    codec: what their KV is kept as. storage_mb_s: as if the store were on storage that gives so many MB (10^6 bytes) a
    second. progress: called with the rounds done and their total.

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
        with _stored(engine, chunks[number], codec, storage_mb_s) as (store, segments):
            measured = _Rounds(engine, engine.template.build(segments, QUESTION), store, variants)
            for done in range(repeats + 1):
                measured.round(done)
                if progress is not None:
                    progress(number * (repeats + 1) + done + 1, total)
        rows.extend(measured.rows(context))
        baselines.append(measured.baseline())
    return TtftReport(codec, storage_mb_s, tuple(rows), tuple(baselines), describe_machine(engine))


class _Rounds:
    """Timings of one prompt: what ran in each round."""

    def __init__(self, engine: Engine, prompt: Prompt, store: KVStore, variants: Sequence[Variant]) -> None:
        self.engine = engine
        self.prompt = prompt
        self.store = store
        self.memory = in_memory(store, prompt.chunks)
        self.variants = variants
        self.own: list[float] = []
        self.theirs: list[float] = []
        self.measured: list[list[_Measured]] = [[] for _ in variants]
        self.attention = ""

    def round(self, number: int) -> None:
        """Run everything once; round 0 warms up."""
        full = self._answer(_FULL, self.store)
        measured = [
            _Measured(full, 0.0, full.timings.ttft_s, None)
            if variant.policy.reuse == "nothing"
            else self._measure(BlendSettings(variant.policy.name, variant.ratio), variant.policy)
            for variant in self.variants
        ]
        with transformers_attention(self.engine.adapter) as self.attention:
            theirs = transformers_prefill(self.engine.adapter, self.prompt.token_ids).seconds
        if number > 0:
            self.own.append(full.timings.ttft_s)
            self.theirs.append(theirs)
            for collected, one in zip(self.measured, measured, strict=True):
                collected.append(one)

    def baseline(self) -> Baseline:
        return judge([len(self.prompt)], self.own, self.theirs, self.attention)

    def rows(self, context: int) -> Iterator[TtftRow]:
        fastest = self.own if self.baseline().ragblend_won else self.theirs
        for variant, rounds in zip(self.variants, self.measured, strict=True):
            seconds = [one.answer.timings.ttft_s for one in rounds]
            yield TtftRow(
                context=context,
                policy=variant.policy.name,
                ratio=rounds[0].answer.ratio if variant.ratio == "auto" else variant.ratio,
                ttft_s=statistics.median(seconds),
                speedup_vs_full=statistics.median(full / own for full, own in zip(fastest, seconds, strict=True)),
                computed_tokens=rounds[0].answer.usage.computed_tokens,
                prompt_tokens=len(self.prompt),
                load_s=statistics.median(one.load_s for one in rounds),
                compute_s=statistics.median(one.compute_s for one in rounds),
                of_bound=statistics.median(one.of_bound for one in rounds),
                floor_s=_median(one.floor_s for one in rounds),
                of_floor=_median(one.of_floor for one in rounds),
            )

    def _measure(self, settings: BlendSettings, policy: Policy) -> _Measured:
        answer = self._answer(settings, self.store)
        load_s = answer.timings.load_s + answer.timings.hidden_load_s
        compute_s = self._answer(settings, self.memory).timings.ttft_s
        blended = blend(
            self.engine.adapter,
            self.engine.anchor,
            self.prompt,
            policy=policy,
            ratio=answer.ratio,
            store=self.memory,
        )
        return _Measured(answer, load_s, compute_s, Floor(self.engine, self.prompt.token_ids, blended).seconds())

    def _answer(self, settings: BlendSettings, store: KVStore) -> Answer:
        return self.engine.generate(self.prompt, store=store, blend=settings, generation=_ONE_TOKEN, prefixes="off")


@dataclass(frozen=True, slots=True)
class _Measured:
    """One policy in one round. Seconds as in TtftRow."""

    answer: Answer
    load_s: float
    compute_s: float
    floor_s: float | None

    @property
    def of_bound(self) -> float:
        return self.answer.timings.ttft_s / max(self.load_s, self.compute_s)

    @property
    def of_floor(self) -> float | None:
        return self.compute_s / self.floor_s if self.floor_s else None


def _median(seconds: Iterable[float | None]) -> float | None:
    """Of those that there are; None for none."""
    known = [one for one in seconds if one is not None]
    return statistics.median(known) if known else None


@contextmanager
def _stored(
    engine: Engine, chunks: Sequence[tuple[int, ...]], codec: str, storage_mb_s: float | None
) -> Iterator[tuple[KVStore, list[Segment]]]:
    """The chunks' KV in a store in a temporary folder, and their segments."""
    segments = [Segment("chunk", ids, engine.chunk_key(DEFAULT_NAMESPACE, ids, codec)) for ids in chunks]
    plain = partial(DiskStore, codec=codec)
    make = plain if storage_mb_s is None else partial(SlowDiskStore, bytes_s=storage_mb_s * 1e6, codec=codec)
    with temporary_store(make) as store:
        for segment, kv in zip(segments, engine.prefill(chunks), strict=True):
            store.put(segment.key or "", kv)
        yield store, segments
