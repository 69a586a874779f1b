"""What each policy computes, on a tiny model with four chunks behind an anchor."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack, closing

import pytest
import torch

from ragblend.blend.blender import Blended, blend
from ragblend.blend.loader import Loader
from ragblend.blend.plan import make_plan
from ragblend.blend.policies import Policy, Request, policy_named, policy_names
from ragblend.errors import ConfigError
from ragblend.prompt import Prompt, Segment
from ragblend.store.memory import MemoryStore
from tests import tiny

CHUNK = 30
SUFFIX = tiny.random_ids(11, seed=99)
CHUNKS = [tiny.random_ids(CHUNK, seed) for seed in range(4)]


@pytest.fixture(scope="module")
def store(tiny_engine) -> MemoryStore:
    made = MemoryStore(budget_bytes=1 << 30)
    for number, kv in enumerate(tiny_engine.prefill(CHUNKS)):
        made.put(str(number), kv)
    return made


def chunk(number: int) -> Segment:
    return Segment("chunk", CHUNKS[number], key=str(number))


def prompt_of(engine, *segments: Segment) -> Prompt:
    return Prompt((Segment("prefix", engine.anchor_ids), *segments, Segment("suffix", SUFFIX)))


@pytest.fixture
def prompt(tiny_engine) -> Prompt:
    return prompt_of(tiny_engine, *(chunk(number) for number in range(4)))


def run(engine, prompt: Prompt, policy: str, ratio: float, store: MemoryStore | None) -> Blended:
    return blend(engine.adapter, engine.anchor, prompt, policy=policy_named(policy), ratio=ratio, store=store)


def full_logits(engine, prompt: Prompt) -> torch.Tensor:
    return run(engine, prompt, "full", 0.0, None).logits


REUSED = 3 * CHUNK  # the first chunk stands right behind the anchor and is exact


@pytest.mark.parametrize(
    ("policy", "ratio", "recomputed"),
    [
        ("none", 0.0, 0),
        ("none", 1.0, 0),
        ("leading", 0.1, 9),
        ("hkvd", 0.1, 9),
        ("query", 0.1, 9),
        ("query", 0.0, 0),
        ("query", 1.0, REUSED),
        ("drift", 0.1, 9),
        ("drift", 0.95, 86),
        ("drift", 0.0, 0),
        ("drift", 1.0, REUSED),
        ("hkvd", 1.0, REUSED),
    ],
)
def test_a_policy_recomputes_its_ratio_of_the_inexact_tokens(tiny_engine, prompt, store, policy, ratio, recomputed):
    blended = run(tiny_engine, prompt, policy, ratio, store)
    assert blended.recomputed == recomputed
    assert blended.computed == len(SUFFIX) + recomputed
    assert blended.cached == len(prompt) - len(SUFFIX)
    assert blended.canvas.get_seq_length() == len(prompt)


def test_full_reuses_nothing_and_prefix_only_what_is_exact(tiny_engine, prompt, store):
    assert run(tiny_engine, prompt, "full", 0.0, store).computed == len(prompt)
    exact = run(tiny_engine, prompt, "prefix", 0.0, store)
    assert exact.cached == len(tiny_engine.anchor_ids) + CHUNK
    torch.testing.assert_close(exact.logits, full_logits(tiny_engine, prompt), atol=1e-4, rtol=0)


@pytest.mark.parametrize("policy", ["leading", "hkvd", "query", "drift"])
def test_ratio_one_is_full_prefill_in_any_order(tiny_engine, store, policy):
    shuffled = prompt_of(tiny_engine, chunk(2), chunk(0), chunk(3))
    blended = run(tiny_engine, shuffled, policy, 1.0, store)
    torch.testing.assert_close(blended.logits, full_logits(tiny_engine, shuffled), atol=1e-4, rtol=0)


def test_more_recomputation_comes_closer_to_full_prefill(tiny_engine, prompt, store):
    expected = full_logits(tiny_engine, prompt)
    distances = [
        float((run(tiny_engine, prompt, "query", ratio, store).logits - expected).norm()) for ratio in (0, 0.5, 1)
    ]
    assert distances[0] > distances[1] > distances[2]


def test_zero_chunks_one_chunk_and_the_same_chunk_twice(tiny_engine, store):
    for segments in ((), (chunk(1),), (chunk(1), chunk(1)), (chunk(1), chunk(0), chunk(1))):
        prompt = prompt_of(tiny_engine, *segments)
        blended = run(tiny_engine, prompt, "query", 1.0, store)
        torch.testing.assert_close(blended.logits, full_logits(tiny_engine, prompt), atol=1e-4, rtol=0)


def test_a_single_chunk_behind_the_anchor_is_exact_without_recomputation(tiny_engine, store):
    prompt = prompt_of(tiny_engine, chunk(3))
    blended = run(tiny_engine, prompt, "none", 0.0, store)
    torch.testing.assert_close(blended.logits, full_logits(tiny_engine, prompt), atol=1e-4, rtol=0)


def test_missing_chunks_and_glue_are_computed_in_place(tiny_engine, store):
    glue = Segment("glue", tiny.random_ids(5, seed=50))
    missing = Segment("chunk", tiny.random_ids(20, seed=51), key="unknown")
    prompt = prompt_of(tiny_engine, chunk(0), glue, missing, chunk(1))
    for policy in ("none", "hkvd", "query"):
        blended = run(tiny_engine, prompt, policy, 0.0, store)
        assert blended.computed == len(SUFFIX) + 5 + 20
    complete = run(tiny_engine, prompt, "query", 1.0, store)
    torch.testing.assert_close(complete.logits, full_logits(tiny_engine, prompt), atol=1e-4, rtol=0)


def test_everything_missing_is_a_full_prefill(tiny_engine, prompt):
    blended = run(tiny_engine, prompt, "query", 0.1, MemoryStore(budget_bytes=1))
    assert blended.computed == len(prompt) - len(tiny_engine.anchor_ids)
    torch.testing.assert_close(blended.logits, full_logits(tiny_engine, prompt), atol=1e-4, rtol=0)


def test_a_prefix_that_is_not_the_anchor_makes_no_chunk_exact(tiny_engine, store):
    other = Segment("prefix", tiny.random_ids(8, seed=77))
    prompt = Prompt((other, chunk(0), chunk(1), Segment("suffix", SUFFIX)))
    blended = run(tiny_engine, prompt, "query", 1.0, store)
    assert blended.recomputed == 2 * CHUNK
    torch.testing.assert_close(blended.logits, full_logits(tiny_engine, prompt), atol=1e-4, rtol=0)


def test_a_suffix_longer_than_the_chunks(tiny_engine, store):
    long_suffix = Segment("suffix", tiny.random_ids(100, seed=5))
    prompt = Prompt((Segment("prefix", tiny_engine.anchor_ids), chunk(0), chunk(1), long_suffix))
    blended = run(tiny_engine, prompt, "query", 1.0, store)
    torch.testing.assert_close(blended.logits, full_logits(tiny_engine, prompt), atol=1e-4, rtol=0)


def test_uninitialised_canvas_rows_are_never_read(tiny_engine, prompt, store, monkeypatch):
    empty = torch.empty

    def poisoned(*arguments, **options):
        made = empty(*arguments, **options)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    expected = run(tiny_engine, prompt, "query", 0.2, store).logits
    monkeypatch.setattr(torch, "empty", poisoned)
    for policy in policy_names():
        assert run(tiny_engine, prompt, policy, 0.2, store).logits.isfinite().all()
    torch.testing.assert_close(run(tiny_engine, prompt, "query", 0.2, store).logits, expected)


@pytest.fixture
def request_for(tiny_engine, prompt):
    """Plans the prompt over a store, at a ratio; what was planned is let go after the test."""
    with ExitStack() as planned:

        def make(store: MemoryStore, ratio: float) -> Request:
            adapter = tiny_engine.adapter
            plan = planned.enter_context(closing(make_plan(prompt, tiny_engine.anchor, store, "all", adapter.device)))
            canvas = adapter.canvas(len(plan))
            return Request(adapter, plan, canvas, planned.enter_context(Loader(adapter, plan, canvas)), ratio)

        yield make


def test_leading_takes_the_first_tokens_of_every_inexact_chunk(prompt, store, request_for):
    request = request_for(store, 0.1)
    rows = policy_named("leading").select(request).rows.tolist()
    starts = prompt.starts[2:5]
    assert [row for row in rows if row < prompt.starts[-1]] == [start + k for start in starts for k in range(3)]


def test_query_takes_what_the_suffix_attends_to(prompt, store, request_for):
    policy = policy_named("query")
    request = request_for(store, 0.1)
    scores = policy.scores(request_for(store, 0.1))
    rows = policy.select(request).rows
    chosen = rows[rows < prompt.starts[-1]]
    rest = torch.tensor([row for row in request.plan.candidates.tolist() if row not in set(chosen.tolist())])
    assert scores[chosen].min() >= scores[rest].max()


def test_hkvd_takes_the_tokens_whose_values_deviate_most(tiny_engine, prompt, request_for):
    """Stored values of two tokens are made wrong on purpose: they must be chosen."""
    damaged = MemoryStore(budget_bytes=1 << 30)
    for number, kv in enumerate(tiny_engine.prefill(CHUNKS)):
        if number == 2:
            kv.layers[1].values[:, [4, 17]] += 50.0
        damaged.put(str(number), kv)
    blended = run(tiny_engine, prompt, "hkvd", 2 / REUSED, damaged)
    request = request_for(damaged, 2 / REUSED)
    pass_ = policy_named("hkvd").select(request)
    request.adapter.forward_rows(request.canvas, request.plan.token_ids, pass_)
    expected = [prompt.starts[3] + 4, prompt.starts[3] + 17]
    assert [row for row in pass_.rows.tolist() if row < prompt.starts[-1]] == expected
    assert blended.recomputed == 2


def test_ties_go_to_the_earlier_token(store, request_for):
    request = request_for(store, 4 / REUSED)
    chosen = request.best_candidates(torch.ones(len(request.plan)))
    assert chosen.tolist() == request.plan.candidates[:4].tolist()


def test_an_unknown_policy_names_the_known_ones():
    with pytest.raises(ConfigError, match=r"unknown policy 'best'.*full, prefix, none, leading, hkvd, query, drift"):
        policy_named("best")


def test_a_plugin_is_found_by_its_entry_point(monkeypatch):
    class Mine(Policy):
        name = "mine"

        def select(self, request):
            raise NotImplementedError

    class Point:
        name = "mine"

        def load(self):
            return Mine

    monkeypatch.setattr("ragblend.blend.policies.entry_points", lambda group, name=None: [Point()])
    assert isinstance(policy_named("mine"), Mine)
    assert "mine" in policy_names()


def test_a_damaged_layer_becomes_a_miss_in_the_middle_of_a_request(tiny_engine, prompt, store):
    from ragblend.errors import CorruptEntryError

    class Damaged(MemoryStore):
        """Its chunk 1 cannot be read beyond layer 2."""

        def open(self, key, token_ids):
            reader = super().open(key, token_ids)
            if key == "1" and reader is not None:
                whole = reader.layer

                def layer(index):
                    if index == 2:
                        raise CorruptEntryError("layer 2 is not what was written")
                    return whole(index)

                reader.layer = layer
            return reader

    flaky = Damaged(budget_bytes=1 << 30)
    for number, kv in enumerate(tiny_engine.prefill(CHUNKS)):
        flaky.put(str(number), kv)
    blended = run(tiny_engine, prompt, "query", 1.0, flaky)
    torch.testing.assert_close(blended.logits, full_logits(tiny_engine, prompt), atol=1e-4, rtol=0)
    assert flaky.misses["corrupt"] == 1
    assert not flaky.contains("1")
    without = dataclasses.replace(prompt, segments=tuple(s for s in prompt.segments if s.key != "1"))
    assert run(tiny_engine, without, "none", 0.0, flaky).computed == len(SUFFIX)


def test_a_prompt_that_begins_like_the_anchor_reuses_as_much_of_it(tiny_engine, store):
    shared = tiny_engine.template.prefix_ids
    assert len(shared) < len(tiny_engine.anchor_ids)
    prompt = Prompt((Segment("prefix", shared), chunk(0), chunk(1), Segment("suffix", SUFFIX)))
    exact = run(tiny_engine, prompt, "prefix", 0.0, store)
    assert exact.cached == len(shared)  # the chunk was prefilled further behind
    torch.testing.assert_close(exact.logits, full_logits(tiny_engine, prompt), atol=1e-4, rtol=0)


def test_a_chunk_that_goes_on_like_the_anchor_is_placed_whole(tiny_engine):
    shared = tiny_engine.template.prefix_ids
    like_the_preamble = tiny_engine.anchor_ids[len(shared) : len(shared) + 20]
    store = MemoryStore(budget_bytes=1 << 30)
    [kv] = tiny_engine.prefill([like_the_preamble])
    store.put("same", kv)
    segment = Segment("chunk", like_the_preamble, key="same")
    prompt = Prompt((Segment("prefix", shared), segment, Segment("suffix", SUFFIX)))
    plan = make_plan(prompt, tiny_engine.anchor, store, "all", tiny_engine.adapter.device)
    assert [(placement.start, placement.stop) for placement in plan.placements] == [
        (0, len(shared)),
        (len(shared), len(shared) + 20),
    ]
