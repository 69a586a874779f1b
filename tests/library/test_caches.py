"""Prefix caching as a library's users meet it: restarts, cache points, named caches, namespaces, removed documents."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers import PreTrainedModel

from ragblend.config import GenerationSettings, PrefixSettings
from ragblend.engine import Engine
from ragblend.errors import CacheHandleError, ConfigError, ModelError, StoreFullError
from ragblend.library.library import Library
from ragblend.prompt import CachePoint, Message
from tests import tiny
from tests.library.conftest import caching_model

SYSTEM = "You are the clerk of a garden shop. " * 12
ONE = GenerationSettings(max_tokens=2)
LONG = GenerationSettings(max_tokens=40)


def ask(library: Library, question: str, *points: CachePoint, **options):
    """A question to the clerk."""
    messages = [Message("system", (SYSTEM, *points)), Message("user", (question,))]
    return library.chat(messages, generation=ONE, **options).complete()


def without(library: Library) -> int:
    """Tokens that even a first question finds: the prompt's beginning that all conversations share."""
    return len(library.engine.template.prefix_ids)


def test_a_restart_finds_what_was_kept(start):
    library = start()
    assert ask(library, "Which mower?").prefix_tokens == 0
    warm = ask(library, "Which trimmer?")
    assert warm.prefix_tokens > len(SYSTEM) - 16
    library.close()
    again = start()
    restarted = ask(again, "Which shears?")
    assert restarted.prefix_tokens == warm.prefix_tokens
    found = again.prefixes.statistics()
    assert found.total.requests == 3
    assert found.disk_bytes > 0


def with_adapter(seed: int = 0) -> PreTrainedModel:
    """The model of ``start`` with low-rank adapters in some of its layers."""
    model = caching_model()
    torch.manual_seed(seed)
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return inject_adapter_in_model(config, model).eval()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(lambda: {"model": caching_model(seed=1)}, id="weights"),
        pytest.param(lambda: {"model": caching_model().to(torch.bfloat16)}, id="dtype"),
        pytest.param(lambda: {"model": with_adapter()}, id="adapter"),
        pytest.param(lambda: {"tokenizer": tiny.tokenizer(tiny.CHAT_TEMPLATE + "{# another one #}")}, id="template"),
        pytest.param(lambda: {"tokenizer": tiny.tokenizer(merges=[("z", "q")])}, id="tokenizer"),
    ],
)
def test_another_model_template_or_tokenizer_finds_nothing(start, other):
    """Not even for the same prompt, which has as many tokens in all of them."""
    library = start()
    first = ask(library, "Which mower?")
    library.close()
    changed = start(**other())
    answer = ask(changed, "Which mower?")
    assert answer.usage.prompt_tokens == first.usage.prompt_tokens
    assert answer.prefix_tokens == 0
    changed.close()
    assert ask(start(), "Which mower?").prefix_tokens > 0  # what the first one kept is still there


def test_another_adapter_finds_nothing_of_the_first(start):
    library = start(model=with_adapter())
    ask(library, "Which mower?")
    library.close()
    assert ask(start(model=with_adapter(seed=1)), "Which mower?").prefix_tokens == 0
    assert ask(start(model=with_adapter()), "Which mower?").prefix_tokens > 0


def test_an_adapter_that_is_switched_meanwhile_is_noticed(start):
    model = with_adapter()
    library = start(model=model)
    ask(library, "Which mower?")
    for module in model.modules():
        if hasattr(module, "set_scale"):
            module.set_scale("default", 3.0)
    with pytest.raises(ModelError, match=r"adapters of .* were changed since the engine was made"):
        ask(library, "Which mower?")
    with pytest.raises(ModelError, match="adapters"):
        library.engine.prefill([(1, 2, 3)])


def test_a_damaged_file_is_computed_again(start):
    library = start()
    first = ask(library, "Which mower?")
    library.close()
    files = list((library.folder / "kv").glob("*/*/*.safetensors"))
    assert files
    for path in files:
        data = bytearray(path.read_bytes())
        data[-20] ^= 1
        path.write_bytes(bytes(data))
    again = start()
    answer = ask(again, "Which mower?")
    assert answer.token_ids == first.token_ids
    assert answer.prefix_tokens == 0
    assert ask(again, "Which mower?").prefix_tokens > 0


class TestDisk:
    def test_is_never_over_its_budget(self, start):
        size = 150_000
        library = start(disk_bytes=size)
        for number in range(6):
            ask(library, f"{number} is the number. " * 10)
            library.prefixes.flush()
            assert sum(path.stat().st_size for path in (library.folder / "kv").glob("*/*/*")) <= size
        assert library.prefixes.statistics().disk_bytes <= size

    def test_serves_what_memory_has_no_room_for(self, start):
        library = start(memory_bytes=0)
        ask(library, "Which mower?")
        library.prefixes.flush()
        assert ask(library, "Which trimmer?").prefix_tokens > 0
        assert library.prefixes.statistics().memory_bytes == 0


class TestCachePoints:
    def test_keep_what_is_before_them_and_nothing_else_where_nothing_is_automatic(self, start):
        library = start(automatic=False)
        assert ask(library, "Which mower?").usage.cache_creation_tokens == 0
        first = ask(library, "Which mower?", CachePoint("1h"))
        [point] = first.cache_points
        assert point.kept
        assert point.ttl_s == 3600
        whole, shared = point.tokens // 16 * 16, first.usage.cached_tokens  # shared: with the engine's own anchor
        assert first.usage.cache_creation_tokens == first.usage.cache_creation_1h_tokens == whole - shared
        second = ask(library, "Which trimmer?", CachePoint("1h"))
        assert second.cache_points[0].read_tokens == second.prefix_tokens == whole
        assert second.usage.cache_creation_tokens == 0

    @pytest.mark.parametrize(("ttl", "seconds"), [("5m", 300), ("1h", 3600)])
    def test_time_runs_from_the_last_use(self, start, clock, ttl, seconds):
        library = start(automatic=False)
        ask(library, "Which mower?", CachePoint(ttl))
        for _ in range(3):
            clock.now += seconds - 1
            assert ask(library, "Which mower?", CachePoint(ttl)).prefix_tokens > 0
        clock.now += seconds
        assert ask(library, "Which mower?").prefix_tokens == 0
        library.prefixes.flush()
        assert not list((library.folder / "kv").glob("*/*/*"))
        assert library.prefixes.statistics().prefixes == 0

    def test_too_little_is_not_kept_and_the_answer_says_so(self, start):
        library = start(minimum_tokens=4000, automatic=False)
        answer = ask(library, "Which mower?", CachePoint())
        [point] = answer.cache_points
        assert not point.kept
        assert "fewer than the minimum of 4,000" in point.reason
        assert answer.usage.cache_creation_tokens == 0

    def test_change_no_token(self, start):
        library = start(automatic=False)
        content = ("You are a clerk.", CachePoint(), " Be kind.", CachePoint("1h"))
        with_them = library.chat([Message("user", content)], generation=ONE).complete()
        plain = library.chat([Message("user", ("You are a clerk. Be kind.",))], generation=ONE).complete()
        assert with_them.usage.prompt_tokens == plain.usage.prompt_tokens
        first, second = with_them.cache_points
        assert second.tokens - first.tokens == len(" Be kind.")

    def test_five_are_refused(self, start):
        with pytest.raises(ConfigError, match="at most 4 cache points, got 5"):
            ask(start(), "Which mower?", *[CachePoint()] * 5)

    @pytest.mark.parametrize(
        "bad",
        [
            {"type": "ephemeral", "ttl": "2h"},
            {"type": "ephemeral", "ttl": None},
            {"type": "forever"},
            {"ttl": "5m"},
            {"type": "ephemeral", "scope": "all"},
            "ephemeral",
        ],
    )
    def test_bad_forms(self, bad):
        with pytest.raises(ConfigError, match=r"ttl|type|scope"):
            CachePoint.of(bad)

    def test_the_hosted_form(self):
        assert CachePoint.of({"type": "ephemeral"}) == CachePoint("5m")
        assert CachePoint.of({"type": "ephemeral", "ttl": "1h"}) == CachePoint("1h")


def test_what_is_past_its_time_is_gone_from_every_tier_although_nobody_asks(start, clock):
    library = start(engine=Engine.from_model(caching_model(), tiny.tokenizer(), preamble=""))  # by the real clock
    library.engine.caches.create([Message("system", (SYSTEM,))], name="clerk", ttl=2.0)
    kept, files, names = library.store.root / "kv", "*/*/*", "SELECT count(*) FROM prefix_names"
    deadline = time.monotonic() + 30
    while list(kept.glob(files)) or library.catalogue.rows(names) != [(0,)]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert library.prefixes._tiers.memory.nbytes() == 0


class TestNamedCaches:
    def test_a_request_goes_on_from_one(self, start):
        library = start(automatic=False)
        cache = library.engine.caches.create([Message("system", (SYSTEM,))], name="clerk", ttl="1h")
        assert cache.tokens > len(SYSTEM) - 5
        answer = library.chat([Message("user", ("Which mower?",))], cache=cache, generation=ONE).complete()
        whole = ask(library, "Which mower?", policy="full")
        assert answer.prefix_tokens == cache.tokens // 16 * 16
        assert answer.usage.prompt_tokens == whole.usage.prompt_tokens
        assert answer.token_ids == whole.token_ids

    def test_survives_a_restart_and_expires_by_its_last_use(self, start, clock):
        library = start()
        library.engine.caches.create([Message("system", (SYSTEM,))], name="clerk", ttl=100)
        library.close()
        clock.now += 60
        again = start()
        question = [Message("user", ("Which mower?",))]
        assert again.chat(question, cache="clerk", generation=ONE).complete().prefix_tokens > 0
        clock.now += 99
        handle = again.engine.caches.get("clerk")
        clock.now += 1
        with pytest.raises(CacheHandleError, match="'clerk' has expired or was deleted"):
            again.chat(question, cache=handle)
        assert again.engine.caches.list() == []

    def test_update_and_delete(self, start, clock):
        library = start(automatic=False)
        caches = library.engine.caches
        cache = caches.create([Message("system", (SYSTEM,))], ttl="5m")
        assert caches.update(cache, ttl="1h").expires_at == clock.now + 3600
        clock.now += 3000
        assert [found.id for found in caches.list()] == [cache.id]
        assert library.prefixes.statistics().prefixes > 0
        caches.delete(cache)
        assert caches.list() == []
        assert library.prefixes.statistics().prefixes == 0
        assert not list((library.folder / "kv").glob("*/*/*"))

    def test_what_another_one_needs_stays(self, start):
        caches = start(automatic=False).engine.caches
        one = caches.create([Message("system", (SYSTEM,))])
        two = caches.create([Message("system", (SYSTEM,)), Message("user", ("Let us talk about hedges. " * 10,))])
        caches.delete(one)
        assert caches.home("default").prefixes.along(two.token_ids).tokens == two.tokens // 16 * 16

    def test_refusals(self, start):
        library = start()
        caches = library.engine.caches
        cache = caches.create([Message("system", (SYSTEM,))], name="clerk")
        with pytest.raises(ConfigError, match="there is a cache called 'clerk'"):
            caches.create([Message("system", (SYSTEM,))], name="clerk")
        with pytest.raises(ConfigError, match="at least 128 tokens"):
            caches.create([Message("system", ("Hello.",))])
        with pytest.raises(ConfigError, match="at least one message"):
            caches.create([])
        for ttl in ("2h", 0, -1, float("nan"), float("inf"), True, None):
            with pytest.raises(ConfigError, match="ttl must be"):
                caches.create([Message("system", (SYSTEM,))], ttl=ttl)
        with pytest.raises(CacheHandleError, match="no cache 'other' in namespace 'default'"):
            library.chat([Message("user", ("Hello.",))], cache="other")
        other = start("tenant", engine=library.engine)
        with pytest.raises(CacheHandleError, match="'clerk' belongs to namespace 'default', not to 'tenant'"):
            other.chat([Message("user", ("Hello.",))], cache=cache)

    def test_no_room(self, start):
        library = start(memory_bytes=1000, disk_bytes=1000)
        with pytest.raises(StoreFullError, match="no room for"):
            library.engine.caches.create([Message("system", (SYSTEM,))])
        assert library.engine.caches.list() == []


class TestNamespaces:
    def test_share_nothing(self, start):
        one = start("one")
        two = start("two", engine=one.engine)
        ask(one, "Which mower?")
        one.prefixes.flush()
        assert ask(two, "Which mower?").prefix_tokens == 0
        assert ask(one, "Which mower?").prefix_tokens > 0

    def test_are_cleared_one_by_one(self, start):
        one = start("one")
        two = start("two", engine=one.engine)
        ask(one, "Which mower?")
        ask(two, "Which mower?")
        assert one.engine.caches.clear(namespace="one") > 0
        assert ask(one, "Which mower?").prefix_tokens == 0
        assert ask(two, "Which mower?").prefix_tokens > 0
        assert one.engine.caches.clear() > 0
        assert ask(two, "Which mower?").prefix_tokens == 0


class TestDocuments:
    def test_removing_one_drops_what_was_built_on_it(self, start, docs):
        library = start()
        library.add(docs)
        first = library.ask("How long is the warranty?", k=2, policy="prefix", generation=ONE)
        assert library.ask("How long is the warranty?", k=2, policy="prefix", generation=ONE).prefix_tokens > 100
        library.remove([first.sources[0].document])
        assert all(prefix.tokens <= without(library) + 16 for prefix in library.engine.caches.prefixes())

    def test_replacing_one_drops_what_was_built_on_it(self, start, docs):
        library = start()
        library.add(docs)
        first = library.ask("How long is the warranty?", k=2, policy="prefix", generation=ONE)
        assert library.ask("How long is the warranty?", k=2, policy="prefix", generation=ONE).prefix_tokens > 100
        Path(first.sources[0].document).write_text("The warranty of the robot is gone, and so is the battery.\n")
        library.add(docs)
        assert all(prefix.tokens <= without(library) + 16 for prefix in library.engine.caches.prefixes())

    def test_removing_one_while_it_is_asked_about_keeps_nothing_of_it(self, start, docs):
        library = start()
        library.add(docs)
        stream = library.stream("How long is the warranty?", k=2, policy="prefix", generation=LONG)
        next(stream)
        library.remove([stream._prompt.chunks[0].source.document])
        assert stream.complete().finish_reason != "cancelled"
        assert all(prefix.tokens <= without(library) + 16 for prefix in library.engine.caches.prefixes())

    def test_clearing_while_something_is_asked_leaves_nothing_behind_it(self, start):
        library = start()
        ask(library, "Which mower?")
        messages = [Message("system", (SYSTEM,)), Message("user", ("Which trimmer?",))]
        stream = library.chat(messages, generation=LONG)
        next(stream)
        library.engine.caches.clear()
        assert stream.complete().usage.cache_creation_tokens == 0
        assert library.engine.caches.prefixes() == ()

    def test_removing_another_one_changes_nothing(self, start, docs):
        library = start()
        library.add(docs)
        first = library.ask("warranty", k=1, policy="prefix", generation=ONE)
        others = [path for path in docs.iterdir() if str(path) != first.sources[0].document]
        library.remove(others)
        assert library.ask("warranty", k=1, policy="prefix", generation=ONE).prefix_tokens > 50


def test_a_use_in_one_process_counts_in_the_other(start, clock):
    first, second = start(automatic=False), start(automatic=False)
    ask(first, "Which mower?", CachePoint("5m"))
    first.prefixes.flush()
    assert ask(second, "Which trimmer?", CachePoint("5m")).prefix_tokens > 0
    second.prefixes.flush()
    for _ in range(3):
        clock.now += 200
        ask(first, "Which mower?", CachePoint("5m"))
        first.prefixes.flush()
    assert ask(second, "Which hose?", CachePoint("5m")).prefix_tokens > 0


def test_what_was_used_is_written_down_while_the_process_runs(start, clock):
    library = start()
    ask(library, "Which mower?")
    library.prefixes._shelf.flush()  # only what was queued already
    assert start().prefixes.statistics().total.requests == 1


def test_a_second_process_finds_what_the_first_wrote_and_not_what_it_cleared(start):
    first, second = start(), start()
    ask(first, "Which mower?")
    first.prefixes.flush()
    assert ask(second, "Which trimmer?").prefix_tokens > 0
    second.prefixes.flush()
    first.engine.caches.clear(namespace="default")
    assert ask(second, "Which hose?").prefix_tokens == 0


@pytest.mark.parametrize("bad", [{"memory_bytes": -1}, {"disk_bytes": -1}, {"block_tokens": 0}, {"max_turns": 0}])
def test_bad_settings(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        PrefixSettings(**bad)
