"""``ratio="auto"``: how much is recomputed while chunks load."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from ragblend.blend.blender import Blended, blend
from ragblend.blend.controller import Controller
from ragblend.blend.plan import make_plan
from ragblend.blend.policies import policy_named
from ragblend.blend.profile import Profile, measure, profile_of
from ragblend.config import BlendSettings, GenerationSettings, Ratio, as_ratio
from ragblend.engine import Engine
from ragblend.errors import ConfigError
from ragblend.kernels.layout import LayerKV
from ragblend.prompt import Prompt, Segment
from ragblend.store.base import WrappedReader
from ragblend.store.memory import MemoryStore
from tests import tiny

CHUNKS = [tiny.random_ids(50, seed) for seed in range(4)]
LAYER_S = 0.05


class SleepyReader(WrappedReader):
    def layer(self, index: int) -> LayerKV:
        time.sleep(LAYER_S / len(CHUNKS))
        return super().layer(index)


class SleepyStore(MemoryStore):
    """Takes at least LAYER_S for a layer of all chunks."""

    def open(self, key, token_ids):
        reader = super().open(key, token_ids)
        return None if reader is None else SleepyReader(reader)


def filled(store: MemoryStore, engine: Engine) -> MemoryStore:
    for ids, kv in zip(CHUNKS, engine.prefill(CHUNKS), strict=True):
        store.put(engine.chunk_key("default", ids), kv)
    return store


@pytest.fixture(scope="module")
def store(tiny_engine) -> MemoryStore:
    return filled(SleepyStore(1 << 30), tiny_engine)


@pytest.fixture(scope="module")
def prompt(tiny_engine) -> Prompt:
    segments = [Segment("chunk", ids, tiny_engine.chunk_key("default", ids)) for ids in CHUNKS]
    return tiny_engine.template.build(segments, "Why?")


def run(engine: Engine, prompt: Prompt, store: MemoryStore, profile: Profile, policy: str, floor: float) -> Blended:
    controller = Controller(floor, lambda: profile)
    return blend(engine.adapter, engine.anchor, prompt, policy=policy_named(policy), ratio=controller, store=store)


def row_seconds(engine: Engine, prompt: Prompt, store: MemoryStore, ratio: float, policy: str) -> float:
    """What a row may cost, so that ``ratio`` just hides behind loading at LAYER_S a layer."""
    plan = make_plan(prompt, engine.anchor, store, "all", engine.adapter.device)
    chosen = round(ratio * plan.candidates.numel())
    plan.close()
    layers = engine.adapter.layer_count
    return LAYER_S * layers / policy_named(policy).work(plan, chosen, layers)


@pytest.mark.parametrize("policy", ["leading", "hkvd", "query"])
def test_as_much_is_recomputed_as_hides_behind_loading(tiny_engine, prompt, store, policy):
    """Loading takes LAYER_S at least, and more where the machine is busy: so much is recomputed at least."""
    profile = Profile(row_seconds(tiny_engine, prompt, store, 0.5, policy), 0.0)
    blended = run(tiny_engine, prompt, store, profile, policy, floor=0.1)
    assert blended.ratio >= 0.5
    assert blended.recomputed == round(blended.ratio * 4 * 50)


def test_a_longer_prompt_makes_rows_dearer(tiny_engine, prompt, store):
    profile = Profile(0.0, row_seconds(tiny_engine, prompt, store, 0.5, "leading") / len(prompt))
    assert run(tiny_engine, prompt, store, profile, "leading", floor=0.1).ratio >= 0.5
    assert run(tiny_engine, prompt, store, replace(profile, row_s=1.0), "leading", floor=0.1).ratio == 0.1


@pytest.mark.parametrize(("row_s", "ratio"), [(10.0, 0.2), (1e-9, 1.0)])
def test_never_below_the_floor_nor_above_everything(tiny_engine, prompt, store, row_s, ratio):
    assert run(tiny_engine, prompt, store, Profile(row_s, 0.0), "leading", floor=0.2).ratio == ratio


def test_hkvd_pays_for_the_layers_that_it_checks(tiny_engine, prompt, store):
    plan = make_plan(prompt, tiny_engine.anchor, store, "all", tiny_engine.adapter.device)
    plan.close()
    hkvd, leading = policy_named("hkvd"), policy_named("leading")
    assert leading.work(plan, 20, layers=4) == plan.mandatory.numel() + 20
    assert hkvd.work(plan, 20, layers=4) == leading.work(plan, 20, layers=4) + 2 / 4 * (200 - 20)


def test_without_reused_chunks_nothing_is_measured(tiny_engine, prompt):
    def unasked() -> Profile:
        raise AssertionError

    blended = blend(
        tiny_engine.adapter,
        tiny_engine.anchor,
        prompt,
        policy=policy_named("query"),
        ratio=Controller(0.15, unasked),
        store=MemoryStore(1 << 30),
    )
    assert (blended.ratio, blended.recomputed) == (0.15, 0)


class TestProfile:
    def test_rows_take_time(self, tiny_engine):
        profile = measure(tiny_engine.adapter)
        assert profile.row_s > 0
        assert profile.key_s >= 0
        assert profile.seconds(10, 100) == 10 * (profile.row_s + 100 * profile.key_s)

    def test_is_measured_once_and_remembered(self, tiny_engine, own_cache):
        first = profile_of(tiny_engine.adapter, tiny_engine.identity)
        assert profile_of(tiny_engine.adapter, tiny_engine.identity) == first
        [path] = (own_cache / "profile").iterdir()
        path.write_text("{")
        again = profile_of(tiny_engine.adapter, tiny_engine.identity)
        assert again.row_s > 0
        assert profile_of(tiny_engine.adapter, tiny_engine.identity) == again

    def test_another_model_has_its_own(self, tiny_engine, own_cache):
        profile_of(tiny_engine.adapter, tiny_engine.identity)
        profile_of(tiny_engine.adapter, replace(tiny_engine.identity, weights="other"))
        assert len(list((own_cache / "profile").iterdir())) == 2


class TestEngine:
    ONE = GenerationSettings(max_tokens=1)

    def test_the_answer_says_which_ratio_was_used(self, tiny_engine, prompt):
        store = filled(MemoryStore(1 << 30), tiny_engine)
        blend = BlendSettings(ratio="auto", ratio_floor=1.0)
        answer = tiny_engine.generate(prompt, store=store, blend=blend, generation=self.ONE, prefixes="off")
        assert (answer.ratio, answer.usage.recomputed_tokens) == (1.0, 200)

    def test_the_next_turn_finds_what_an_automatic_ratio_left(self, tiny_engine, prompt, store, monkeypatch):
        """Whatever ratio each request had; another floor is another setting."""
        monkeypatch.setitem(vars(tiny_engine), "_profile", Profile(10.0, 0.0))  # too dear for more than the floor
        cache = tiny_engine.caches.own("auto").prefixes
        blend = BlendSettings(ratio="auto", ratio_floor=0.2)
        answer = tiny_engine.generate(prompt, store=store, blend=blend, generation=self.ONE, prefixes=cache)
        assert (answer.ratio, answer.prefix_tokens) == (0.2, 0)
        longer = replace(prompt, segments=(*prompt.segments, *tiny_engine.template.build([], "And why?").segments[-1:]))

        def found(settings: BlendSettings) -> int:
            stream = tiny_engine.stream(longer, store=store, blend=settings, generation=self.ONE, prefixes=cache)
            return stream.complete().prefix_tokens

        assert found(replace(blend, ratio_floor=0.3)) <= len(tiny_engine.template.prefix_ids)
        assert found(blend) > 200


@pytest.mark.parametrize(("text", "ratio"), [("auto", "auto"), ("0.2", 0.2), ("1", 1.0)])
def test_a_ratio_in_words(text: str, ratio: Ratio):
    assert as_ratio(text) == ratio


@pytest.mark.parametrize("text", ["", "much", "-1", "nan", "1.5"])
def test_no_ratio(text: str):
    with pytest.raises(ConfigError, match="auto or between 0 and 1"):
        as_ratio(text)
