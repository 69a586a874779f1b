"""Namespaces: what one has kept shows in no other, neither in what is reused nor in how long it takes."""

from __future__ import annotations

import random
import statistics
import time
from pathlib import Path

import pytest

from ragblend.blend.blender import blend
from ragblend.blend.policies import policy_named
from ragblend.config import BlendSettings, GenerationSettings, PrefixSettings
from ragblend.engine import Engine
from ragblend.library.library import Library
from ragblend.prefix.request import PrefixRequest
from ragblend.prompt import Prompt, Segment
from tests import tiny

SHORT = GenerationSettings(max_tokens=1)
EXACT = BlendSettings(policy="prefix")


@pytest.fixture
def open_library():
    """Opens a namespace of the library in a folder."""
    opened: list[Library] = []

    def open_it(folder: Path, engine: Engine, namespace: str) -> Library:
        opened.append(Library.open(folder / "test.rag", engine=engine, namespace=namespace))
        return opened[-1]

    yield open_it
    for library in opened:
        library.close()


def plain(*ids: int) -> Prompt:
    return Prompt((Segment("suffix", ids),))


def test_the_same_prompt_in_another_namespace_is_computed_whole(tiny_engine):
    own, other = (tiny_engine.caches.own(name).prefixes for name in ("isolated", "another"))
    prompt = plain(*tiny.random_ids(200, 77))
    tiny_engine.generate(prompt, blend=EXACT, generation=SHORT, prefixes=own)
    assert tiny_engine.generate(prompt, blend=EXACT, generation=SHORT, prefixes=other).usage.computed_tokens == 200
    assert tiny_engine.generate(prompt, blend=EXACT, generation=SHORT, prefixes=own).usage.computed_tokens == 8
    assert other.statistics().total.read_tokens == 0


@pytest.mark.long
@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_nobody_can_tell_by_the_clock_whether_another_namespace_has_a_prompt(tier, tmp_path, open_library):
    """A permutation test on medians, wrong in few of a thousand runs; the control: it sees a hit of one's own."""
    settings = PrefixSettings(memory_bytes=0 if tier == "disk" else 1 << 30)
    model = tiny.family("llama", max_position_embeddings=2048)
    engine = Engine.from_model(model, tiny.tokenizer(), prefix=settings)
    if tier == "memory":
        own, other = (engine.caches.own(name).prefixes for name in ("own", "other"))
    else:
        own, other = (open_library(tmp_path, engine, name).prefixes for name in ("own", "other"))
    known = [plain(*tiny.random_ids(1600, 1000 + number)) for number in range(40)]
    unknown = [plain(*tiny.random_ids(1600, 2000 + number)) for number in range(40)]
    mine = [plain(*tiny.random_ids(1600, 3000 + number)) for number in range(40)]
    for prompt in known:
        engine.generate(prompt, blend=EXACT, generation=SHORT, prefixes=other)
    for prompt in mine:
        engine.generate(prompt, blend=EXACT, generation=SHORT, prefixes=own)

    for cache in (own, other):
        cache.flush()

    def seconds(prompt: Prompt) -> float:
        request = PrefixRequest(own, prompt, None, 0.0)
        began = time.perf_counter()
        blend(engine.adapter, engine.anchor, prompt, policy=policy_named("prefix"), ratio=0.0, prefix=request)
        taken = time.perf_counter() - began
        request.close()
        return taken

    order = [(kind, prompt) for kind, prompts in enumerate((known, unknown, mine)) for prompt in prompts]
    random.Random(0).shuffle(order)
    taken: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for kind, prompt in order:
        taken[kind].append(seconds(prompt))
    assert probability_of_no_difference(taken[2], taken[1]) < 0.001  # the control
    assert probability_of_no_difference(taken[0], taken[1]) > 0.001


def probability_of_no_difference(one: list[float], two: list[float], rounds: int = 2000) -> float:
    """How often medians of shuffled samples are as far apart as these."""
    chance, together = random.Random(1), [*one, *two]
    observed = abs(statistics.median(one) - statistics.median(two))
    as_far = 0
    for _ in range(rounds):
        chance.shuffle(together)
        as_far += abs(statistics.median(together[: len(one)]) - statistics.median(together[len(one) :])) >= observed
    return as_far / rounds
