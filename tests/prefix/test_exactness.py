"""What the prefix cache serves is what would have been computed: token by token, and logit by logit."""

from __future__ import annotations

import random
import threading

import pytest
import torch

from ragblend.blend.blender import blend
from ragblend.blend.policies import policy_named
from ragblend.config import BlendSettings, GenerationSettings, PrefixSettings
from ragblend.engine import Engine
from ragblend.prefix.request import PrefixRequest
from ragblend.prompt import Prompt, Segment
from tests import tiny

EXACT = BlendSettings(policy="prefix")
FULL = BlendSettings(policy="full")
SHORT = GenerationSettings(max_tokens=6)
FAMILIES = ["llama", "mistral", "gemma2", "gemma3", "smollm3", "gpt-oss", "phi3"]


def row_bytes(engine: Engine) -> int:
    """Bytes of one token's keys and values in all layers."""
    return sum(2 * shape.kv_heads * shape.head_dim for shape in engine.adapter.shapes) * engine.adapter.dtype.itemsize


def engine_for(family: str, tokens: int | None = None, **settings) -> Engine:
    """An engine whose cache has room for ``tokens`` tokens."""
    engine = Engine.from_model(tiny.family(family), tiny.tokenizer(), prefix=PrefixSettings(**settings))
    if tokens is None:
        return engine
    room = PrefixSettings(memory_bytes=tokens * row_bytes(engine), **settings)
    return Engine.from_model(tiny.family(family), tiny.tokenizer(), prefix=room)


def plain(*ids: int) -> Prompt:
    return Prompt((Segment("suffix", ids),))


def shared_prompts(count: int, seed: int = 0) -> list[Prompt]:
    """Prompts of 20 to 200 tokens that share beginnings of every length with each other."""
    chance = random.Random(seed)
    prompts: list[tuple[int, ...]] = [tiny.random_ids(120, seed)]
    while len(prompts) < count:
        base = chance.choice(prompts)
        shared = base[: chance.randrange(1, len(base))]
        prompts.append((*shared, *tiny.random_ids(chance.randrange(20, 80), seed + len(prompts))))
    return [plain(*ids[:200]) for ids in prompts]


@pytest.mark.parametrize(
    ("family", "count", "tokens"),
    [(family, 20, 2) for family in FAMILIES[:5]]
    + [pytest.param(family, 100, 8, marks=pytest.mark.long) for family in FAMILIES],
)
def test_greedy_answers_are_the_same_with_and_without_while_the_cache_evicts(family, count, tokens):
    engine = engine_for(family, tokens=4 * count + 240)
    settings = GenerationSettings(max_tokens=tokens)
    cache = engine.caches.own("default").prefixes
    reused = 0
    for prompt in shared_prompts(count, seed=7):
        answer = engine.generate(prompt, blend=EXACT, generation=settings)
        assert answer.token_ids == engine.generate(prompt, blend=FULL, generation=settings).token_ids
        assert cache.statistics().memory_bytes <= cache.settings.memory_bytes
        reused += answer.prefix_tokens
    found = cache.statistics()
    assert found.evicted > count / 5
    assert reused == found.total.read_tokens > 10 * count


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-oss"])
def test_logits_behind_a_kept_prefix_are_those_of_a_full_prefill(family):
    engine = engine_for(family)
    cache = engine.caches.own("default").prefixes
    first, second = tiny.random_ids(150, 1), (*tiny.random_ids(150, 1)[:101], *tiny.random_ids(60, 2))
    engine.generate(plain(*first), blend=EXACT, generation=SHORT)
    request = PrefixRequest(cache, plain(*second), None, 0.0)
    with_cache, without = (
        blend(engine.adapter, engine.anchor, plain(*second), policy=policy_named("prefix"), ratio=0.0, prefix=prefix)
        for prefix in (request, None)
    )
    request.close()
    assert with_cache.prefix_tokens == 96  # whole blocks of 16
    torch.testing.assert_close(with_cache.logits, without.logits, atol=1e-4, rtol=1e-4)


def test_in_16_bits_kept_keys_are_bit_for_bit_what_was_computed():
    engine = Engine.from_model(tiny.family("llama").to(torch.bfloat16), tiny.tokenizer())
    prompt = plain(*tiny.random_ids(100, 3))
    cache = engine.caches.own("default").prefixes
    computed = blend(engine.adapter, engine.anchor, prompt, policy=policy_named("prefix"), ratio=0.0)
    engine.generate(prompt, blend=EXACT, generation=SHORT)
    request = PrefixRequest(cache, prompt, None, 0.0)
    placed = blend(engine.adapter, engine.anchor, prompt, policy=policy_named("prefix"), ratio=0.0, prefix=request)
    request.close()
    assert placed.prefix_tokens == 96
    for layer in range(engine.adapter.layer_count):
        assert torch.equal(placed.canvas.keys(layer)[:, :, :96], computed.canvas.keys(layer)[:, :, :96])
        assert torch.equal(placed.canvas.values(layer)[:, :, :96], computed.canvas.values(layer)[:, :, :96])


def test_one_other_token_ends_the_reuse_at_its_block():
    engine = engine_for("llama")
    ids = list(tiny.random_ids(100, 5))
    engine.generate(plain(*ids), blend=EXACT, generation=SHORT)
    for changed, reused in [(0, 0), (15, 0), (16, 16), (50, 48), (95, 80), (96, 96), (99, 96)]:
        other = [*ids[:changed], (ids[changed] + 1) % 256, *ids[changed + 1 :]]
        request = PrefixRequest(engine.caches.own("default").prefixes, plain(*other), None, 0.0)
        parts = request.find()
        assert sum(part.reader.tokens for part in parts) == reused
        request.close()


def test_a_conversation_grows_on_its_own_answers_and_branches():
    engine = engine_for("llama")
    ids = tiny.random_ids(64, 6)
    settings = GenerationSettings(max_tokens=20)
    first = engine.generate(plain(*ids), blend=EXACT, generation=settings)
    grown = (*ids, *first.token_ids, *tiny.random_ids(30, 8))
    second = engine.generate(plain(*grown), blend=EXACT, generation=settings)
    assert second.prefix_tokens == (64 + 19) // 16 * 16  # the last token of an answer has no row
    branch = (*ids, *first.token_ids, *tiny.random_ids(30, 9))
    third = engine.generate(plain(*branch), blend=EXACT, generation=settings)
    assert third.prefix_tokens == second.prefix_tokens
    for prompt, answer in ((grown, second), (branch, third)):
        assert answer.token_ids == engine.generate(plain(*prompt), blend=FULL, generation=settings).token_ids


def test_the_whole_prompt_once_more_computes_its_last_block_only():
    engine = engine_for("llama")
    prompt = plain(*tiny.random_ids(160, 10))
    first = engine.generate(prompt, blend=EXACT, generation=SHORT)
    again = engine.generate(prompt, blend=EXACT, generation=SHORT)
    assert again.usage.computed_tokens == 16
    assert again.token_ids == first.token_ids
    assert (first.usage.cache_creation_tokens, again.usage.cache_creation_tokens) == (160, 0)


def test_full_neither_reads_nor_fills_the_cache():
    engine = engine_for("llama")
    prompt = plain(*tiny.random_ids(100, 11))
    for _ in range(2):
        assert engine.generate(prompt, blend=FULL, generation=SHORT).usage.computed_tokens == 100
    assert engine.caches.statistics().prefixes == 0


def test_threads_that_share_a_cache_get_the_answers_of_one_alone():
    engine = engine_for("llama", tokens=240)
    prompts = shared_prompts(8, seed=3)
    settings = GenerationSettings(max_tokens=2)
    expected = [engine.generate(prompt, blend=FULL, generation=settings).token_ids for prompt in prompts]
    wrong: list[int] = []

    def hammer(seed: int) -> None:
        order = list(range(len(prompts)))
        random.Random(seed).shuffle(order)
        for index in order:
            with engine.stream(prompts[index], blend=EXACT, generation=settings) as stream:
                if index % 5 == seed % 5:  # some leave early
                    next(stream, None)
                    continue
                if stream.complete().token_ids != expected[index]:
                    wrong.append(index)

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    found = engine.caches.statistics()
    assert found.memory_bytes <= found.memory_budget
    assert found.total.read_tokens > 0
    assert all(run.pins == 0 for run in engine.caches.own("default").prefixes._index)


@pytest.mark.parametrize(("talking", "room", "length"), [(12, 3, 3), pytest.param(50, 10, 4, marks=pytest.mark.long)])
def test_more_conversations_than_there_is_room_for(talking, room, length):
    """Interleaved; a conversation goes on soon after its last turn more often than not."""
    engine = engine_for("llama", tokens=room * 40 * length)
    settings = GenerationSettings(max_tokens=3)
    cache = engine.caches.own("default").prefixes
    chance = random.Random(1)
    talks: list[tuple[int, ...]] = [tiny.random_ids(48, 100 + number) for number in range(talking)]
    turns = [0] * talking
    recent: list[int] = []
    wrong = 0
    while any(count < length for count in turns):
        again = [number for number in recent[-room:] if turns[number] < length]
        waiting = [number for number in range(talking) if turns[number] < length]
        number = chance.choice(again) if again and chance.random() < 0.8 else chance.choice(waiting)
        answer = engine.generate(plain(*talks[number]), blend=EXACT, generation=settings)
        wrong += answer.token_ids != engine.generate(plain(*talks[number]), blend=FULL, generation=settings).token_ids
        assert cache.statistics().memory_bytes <= cache.settings.memory_bytes
        talks[number] = (*talks[number], *answer.token_ids, *tiny.random_ids(20, 1000 + number * 4 + turns[number]))
        turns[number] += 1
        recent.append(number)
    found = cache.statistics()
    assert wrong == 0
    assert found.evicted > 0
    assert found.total.requests == talking * length
    assert 0.2 < found.total.hit_rate < 1.0
