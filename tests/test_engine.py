"""From a prompt to an answer: decoding, streaming, cancellation, overflow, usage."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

from ragblend.blend.gate import run_gate
from ragblend.config import BlendSettings, GenerationSettings
from ragblend.engine import Engine
from ragblend.errors import ConfigError, ContextOverflowError, ModelError
from ragblend.models.canvas import Canvas
from ragblend.prompt import Prompt, Segment
from ragblend.results import Source
from ragblend.store.memory import MemoryStore
from tests import tiny

CHUNKS = [tiny.random_ids(40, seed) for seed in range(4)]
GREEDY = GenerationSettings(max_tokens=12)
FULL = BlendSettings(policy="full")


@pytest.fixture(scope="module")
def store(tiny_engine) -> MemoryStore:
    made = MemoryStore(budget_bytes=1 << 30)
    for number, kv in enumerate(tiny_engine.prefill(CHUNKS)):
        made.put(str(number), kv)
    return made


@pytest.fixture
def prompt(tiny_engine) -> Prompt:
    chunks = [
        Segment("chunk", ids, str(number), Source(f"{number}.md", 0, 1.0 - number / 10, "text"))
        for number, ids in enumerate(CHUNKS)
    ]
    return tiny_engine.template.build(chunks, "What is it?")


def transformers_answer(engine: Engine, prompt: Prompt, **settings) -> tuple[int, ...]:
    """transformers' own generate on the same ids, with its own attention and cache."""
    model = engine.adapter.model
    ids = torch.tensor([prompt.token_ids])
    model.set_attn_implementation("eager")
    try:
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, pad_token_id=258, **settings)
    finally:
        model.set_attn_implementation("ragblend")
    return tuple(made[0, ids.shape[1] :].tolist())


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gemma3", "smollm3", "gpt-oss"])
def test_greedy_answers_at_ratio_one_are_those_of_transformers(family):
    engine = Engine.from_model(tiny.family(family), tiny.tokenizer())
    store = MemoryStore(budget_bytes=1 << 30)
    for number, kv in enumerate(engine.prefill(CHUNKS)):
        store.put(str(number), kv)
    prompt = engine.template.build([Segment("chunk", ids, str(n)) for n, ids in enumerate(CHUNKS)], "Why?")
    for blend in (FULL, BlendSettings(policy="query", ratio=1.0), BlendSettings(policy="hkvd", ratio=1.0)):
        answer = engine.generate(prompt, store=store, blend=blend, generation=GREEDY)
        assert answer.token_ids == transformers_answer(engine, prompt, do_sample=False)


def test_without_a_preamble_the_first_chunk_is_exact(tiny_engine):
    engine = Engine.from_model(tiny.family("llama"), tiny.tokenizer(), preamble="")
    assert engine.anchor_ids == engine.template.prefix_ids
    store = MemoryStore(budget_bytes=1 << 30)
    [kv] = engine.prefill(CHUNKS[:1])
    store.put("0", kv)
    prompt = engine.template.build([Segment("chunk", CHUNKS[0], "0")], "Why?")
    reused = engine.generate(prompt, store=store, blend=BlendSettings(policy="none"), generation=GREEDY)
    assert reused.usage.cached_tokens == len(engine.anchor_ids) + 40
    assert reused.token_ids == engine.generate(prompt, blend=FULL, generation=GREEDY).token_ids


def test_the_preamble_takes_at_most_an_eighth_of_the_context_and_is_part_of_every_key(tiny_engine):
    other = Engine.from_model(tiny.family("llama"), tiny.tokenizer(), preamble="Another beginning. " * 1000)
    prefix = len(other.template.prefix_ids)
    assert len(other.anchor_ids) == prefix + other.context_length // 8
    assert other.chunk_key("default", CHUNKS[0]) != tiny_engine.chunk_key("default", CHUNKS[0])


def test_logits_processors_are_those_of_transformers(tiny_engine, prompt):
    settings = GenerationSettings(max_tokens=12, repetition_penalty=1.8)
    ours = tiny_engine.generate(prompt, blend=FULL, generation=settings).token_ids
    assert ours == transformers_answer(tiny_engine, prompt, do_sample=False, repetition_penalty=1.8)
    assert ours != tiny_engine.generate(prompt, blend=FULL, generation=GREEDY).token_ids


def test_a_seed_repeats_a_sample_and_another_gives_another(tiny_engine, prompt):
    def sample(seed):
        settings = GenerationSettings(max_tokens=12, temperature=1.5, top_k=50, top_p=0.95, seed=seed)
        return tiny_engine.generate(prompt, generation=settings).token_ids

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)


def test_sampling_leaves_the_global_generator_alone(tiny_engine, prompt):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    tiny_engine.generate(prompt, generation=GenerationSettings(max_tokens=4, temperature=1.0, seed=3))
    assert torch.equal(torch.rand(3), expected)


def test_a_stream_gives_the_answer_piece_by_piece(tiny_engine, prompt, store):
    stream = tiny_engine.stream(prompt, store=store, generation=GREEDY)
    with pytest.raises(ConfigError, match="not finished"):
        _ = stream.answer
    pieces = list(stream)
    assert len(pieces) > 3
    assert "".join(pieces).strip() == stream.answer.text
    assert stream.answer.token_ids == tiny_engine.generate(prompt, store=store, generation=GREEDY).token_ids


def test_usage_adds_up(tiny_engine, prompt, store):
    blend = BlendSettings(ratio=0.1)
    answer = tiny_engine.generate(prompt, store=store, blend=blend, generation=GREEDY, prefixes="off")
    usage = answer.usage
    assert usage.prompt_tokens == len(prompt)
    assert usage.prompt_tokens == usage.cached_tokens - usage.recomputed_tokens + usage.computed_tokens
    assert usage.recomputed_tokens == 16
    assert usage.completion_tokens == len(answer.token_ids) == 12
    assert answer.finish_reason == "length"
    assert 0 < answer.timings.ttft_s <= answer.timings.total_s
    assert [source.document for source in answer.sources] == ["0.md", "1.md", "2.md", "3.md"]


def test_stop_strings_end_the_answer_and_stay_out_of_it(tiny_engine, prompt):
    whole = tiny_engine.generate(prompt, blend=FULL, generation=GREEDY).text
    stop = whole[4:6]
    stopped = tiny_engine.generate(prompt, blend=FULL, generation=GenerationSettings(max_tokens=12, stop=(stop,)))
    assert stopped.finish_reason == "stop"
    assert stopped.text == whole[: whole.index(stop)].strip()


def test_the_end_token_ends_the_answer(tiny_engine, prompt):
    first = tiny_engine.generate(prompt, blend=FULL, generation=GREEDY).token_ids
    config = tiny_engine.adapter.model.generation_config
    before = config.eos_token_id
    config.eos_token_id = [257, first[3]]
    try:
        answer = tiny_engine.generate(prompt, blend=FULL, generation=GREEDY)
    finally:
        config.eos_token_id = before
    assert answer.token_ids == first[: first.index(first[3]) + 1]
    assert answer.finish_reason == "stop"


def canvases() -> list[Canvas]:
    gc.collect()
    return [each for each in gc.get_objects() if issubclass(type(each), Canvas)]


def test_cancelling_frees_the_canvas_and_the_next_request_works(tiny_engine, prompt, store):
    before = len(canvases())
    for _ in range(20):
        stream = tiny_engine.stream(prompt, store=store, generation=GREEDY)
        next(stream)
        stream.cancel()
        list(stream)
        assert stream.answer.finish_reason == "cancelled"
    del stream
    assert len(canvases()) == before
    assert tiny_engine.generate(prompt, store=store, generation=GREEDY).finish_reason == "length"


def test_cancelling_before_the_first_token_ends_in_the_prefill(tiny_engine, prompt, store):
    stream = tiny_engine.stream(prompt, store=store, generation=GREEDY)
    stream.cancel()
    assert list(stream) == []
    assert stream.answer.finish_reason == "cancelled"
    assert stream.answer.usage.completion_tokens == 0


def test_leaving_a_stream_early_frees_it(tiny_engine, prompt, store):
    before = len(canvases())
    with tiny_engine.stream(prompt, store=store, generation=GREEDY) as stream:
        next(stream)
    assert stream.answer.finish_reason == "cancelled"
    finished = weakref.ref(stream)
    del stream
    gc.collect()
    assert finished() is None
    assert len(canvases()) == before


def test_overflow_is_refused_with_the_counts(tiny_engine, prompt):
    with pytest.raises(ContextOverflowError, match=f"{len(prompt)} tokens.*512") as caught:
        tiny_engine.generate(prompt, generation=GenerationSettings(max_tokens=500))
    assert (caught.value.prompt_tokens, caught.value.answer_tokens, caught.value.limit) == (len(prompt), 500, 512)


def test_overflow_drops_the_lowest_scored_chunks_where_asked_to(tiny_engine, prompt, store):
    room = 512 - len(prompt) + 60
    answer = tiny_engine.generate(
        prompt, store=store, blend=BlendSettings(overflow="drop"), generation=GenerationSettings(max_tokens=room)
    )
    assert [source.document for source in answer.dropped] == ["3.md", "2.md"]
    assert [source.document for source in answer.sources] == ["0.md", "1.md"]


def test_threads_get_the_answers_of_one_at_a_time(tiny_engine, prompt, store):
    blends = [BlendSettings(policy=policy, ratio=0.3) for policy in ("full", "none", "hkvd", "query")] * 3
    expected = [tiny_engine.generate(prompt, store=store, blend=each, generation=GREEDY).token_ids for each in blends]
    found: dict[int, tuple[int, ...]] = {}

    def ask(index):
        found[index] = tiny_engine.generate(prompt, store=store, blend=blends[index], generation=GREEDY).token_ids

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(blends))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[index] for index in range(len(blends))] == expected


def test_two_engines_may_share_a_model():
    """Each with its own wording, on one copy of the weights."""
    texts = [tiny.random_ids(40, seed) for seed in range(3)]

    def answer(engine: Engine) -> tuple[int, ...]:
        store = MemoryStore(budget_bytes=1 << 30)
        for number, kv in enumerate(engine.prefill(texts)):
            store.put(str(number), kv)
        prompt = engine.template.build([Segment("chunk", ids, str(n)) for n, ids in enumerate(texts)], "Why?")
        blend = BlendSettings(policy="query", ratio=0.2)
        return engine.generate(prompt, store=store, blend=blend, generation=GREEDY).token_ids

    alone = [
        answer(Engine.from_model(tiny.family("llama"), tiny.tokenizer(), system=words)) for words in ("One.", "Two.")
    ]
    model = tiny.family("llama")
    engines = [Engine.from_model(model, tiny.tokenizer(), system=words) for words in ("One.", "Two.")]
    assert [answer(engine) for engine in engines] == alone
    assert all(run_gate(engine.adapter, engine.name).passed for engine in engines)


def test_a_model_without_a_tokenizer_cannot_read_text():
    with pytest.raises(ModelError, match="no tokenizer"):
        Engine.from_model(tiny.family("llama"), None)


def test_an_unknown_default_policy_is_refused_at_construction():
    with pytest.raises(ConfigError, match="unknown policy 'magic'"):
        Engine.from_model(tiny.family("llama"), tiny.tokenizer(), blend=BlendSettings(policy="magic"))


def test_keys_change_with_namespace_weights_template_and_dtype(tiny_engine):
    ids = CHUNKS[0]
    others = [
        Engine.from_model(tiny.family("llama", seed=1), tiny.tokenizer()),
        Engine.from_model(tiny.family("llama"), tiny.tokenizer(), system="Other words."),
        Engine.from_model(tiny.family("llama").to(torch.bfloat16), tiny.tokenizer()),
        Engine.from_model(tiny.family("llama-linear"), tiny.tokenizer()),
        Engine.from_model(tiny.family("llama", rms_norm_eps=1e-3), tiny.tokenizer()),
    ]
    keys = {tiny_engine.chunk_key("a", ids), tiny_engine.chunk_key("b", ids), tiny_engine.chunk_key("a", ids[:-1])}
    keys |= {engine.chunk_key("a", ids) for engine in others}
    assert len(keys) == 3 + len(others)
    same = Engine.from_model(tiny.family("llama"), tiny.tokenizer(), name="a copy under another name")
    assert same.chunk_key("a", ids) == tiny_engine.chunk_key("a", ids)
