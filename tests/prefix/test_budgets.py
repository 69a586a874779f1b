"""Room for prefixes: beside chunk KV, in one order of eviction, and of one prompt the tail first."""

from __future__ import annotations

import pytest

from ragblend.config import PrefixSettings
from ragblend.engine import Engine
from ragblend.prefix.cache import PrefixCache
from ragblend.prefix.growth import Finished
from ragblend.prefix.index import Sought
from ragblend.store.base import ChunkKV
from ragblend.store.key import token_bytes
from ragblend.store.memory import MemoryStore
from ragblend.testing import numbered_key, random_kv
from tests import tiny

BLOCK = 16
ONE_BLOCK = random_kv(tokens=BLOCK).nbytes


class Kept:
    """A cache with room in memory for so many blocks of random KV."""

    def __init__(self, clock, blocks: int, **settings) -> None:
        self.clock = clock
        self.memory = MemoryStore(blocks * ONE_BLOCK, clock=clock)
        self.cache = PrefixCache("default", "model", PrefixSettings(**settings), clock, self.memory)

    def ask(self, *token_ids: int, points: tuple[tuple[int, float], ...] = ()) -> int:
        """A request for a prompt. Returns how many of its tokens were there."""
        self.clock.advance(1)
        path = self.cache.find(Sought(token_bytes((*token_ids, 0))))
        self.clock.advance(1)
        self.cache.keep(Finished(token_ids, len(token_ids), path), self.take, points)
        self.cache.release(path)
        assert self.memory.nbytes() <= self.memory.budget_bytes
        return path.tokens

    def has(self, *token_ids: int) -> int:
        """How many tokens of a prompt are there."""
        return self.cache.along(token_ids).tokens

    @staticmethod
    def take(start: int, token_ids: tuple[int, ...]) -> ChunkKV:
        return ChunkKV(token_ids, random_kv(start, tokens=len(token_ids)).layers)


def prompt(blocks: int, seed: int = 0) -> tuple[int, ...]:
    return tiny.random_ids(blocks * BLOCK, seed)


def test_of_a_conversation_the_tail_goes_first(clock):
    kept = Kept(clock, blocks=6)
    talk = prompt(4)
    for turns in (1, 2, 3, 4):  # each turn adds a run of its own behind those before
        kept.ask(*talk[: turns * BLOCK])
    kept.ask(*prompt(3, seed=1))
    assert kept.has(*talk) == 3 * BLOCK
    assert kept.has(*prompt(3, seed=1)) == 3 * BLOCK


def test_the_tail_goes_first_also_where_another_request_wrote_what_is_before_it(clock):
    kept = Kept(clock, blocks=5)
    talk = prompt(4)
    early = kept.cache.find(Sought(token_bytes(talk)))  # both look before either has written
    kept.ask(*talk[: 2 * BLOCK])
    clock.advance(1)
    kept.cache.keep(Finished(talk, len(talk), early), kept.take)
    kept.ask(*prompt(2, seed=1))
    assert kept.has(*talk) in (2 * BLOCK, 3 * BLOCK)


def test_a_prompt_never_evicts_its_own_beginning(clock):
    kept = Kept(clock, blocks=40)
    assert kept.ask(*prompt(64)) == 0  # two runs, of which one fits
    assert kept.has(*prompt(64)) == 32 * BLOCK


@pytest.mark.parametrize(("idle_s", "goes"), [(100, "chunk"), (5, "prefix")])
def test_chunks_and_prefixes_make_room_for_each_other(clock, idle_s, goes):
    """An old chunk makes room for a new prompt; but a prompt is sooner old than a chunk."""
    kept = Kept(clock, blocks=2)
    kept.memory.put(numbered_key(), random_kv(tokens=BLOCK))
    clock.advance(idle_s)
    kept.ask(*prompt(1))
    kept.ask(*prompt(1, seed=1))
    assert kept.memory.contains(numbered_key()) == (goes == "prefix")
    assert kept.has(*prompt(1)) == (BLOCK if goes == "chunk" else 0)
    assert kept.has(*prompt(1, seed=1)) == BLOCK
    assert kept.cache.statistics().evicted == (goes == "prefix")


def test_a_prefix_that_made_room_for_a_chunk_is_kept_anew(clock):
    kept = Kept(clock, blocks=1)
    kept.ask(*prompt(1))
    clock.advance(1)
    kept.memory.put(numbered_key(), random_kv(tokens=BLOCK))
    assert kept.ask(*prompt(1)) == 0
    assert kept.ask(*prompt(1)) == BLOCK
    assert kept.cache.statistics().prefixes == 1


def test_prefixes_take_no_more_than_their_share(clock):
    kept = Kept(clock, blocks=10, memory_bytes=3 * ONE_BLOCK)
    kept.memory.put(numbered_key(), random_kv(tokens=BLOCK))
    for seed in range(8):
        kept.ask(*prompt(1, seed))
        assert kept.cache.statistics().memory_bytes <= 3 * ONE_BLOCK
    assert kept.memory.contains(numbered_key())
    assert [kept.has(*prompt(1, seed)) > 0 for seed in range(8)] == [False] * 5 + [True] * 3


def test_a_time_to_live_outlasts_what_has_none(clock):
    kept = Kept(clock, blocks=2)
    kept.ask(*prompt(1), points=((BLOCK, 3600.0),))
    for seed in range(1, 6):
        kept.ask(*prompt(1, seed))
        clock.advance(1)
        kept.memory.put(numbered_key(seed), random_kv(tokens=BLOCK))
    assert kept.has(*prompt(1)) == BLOCK
    clock.advance(3600)
    assert kept.has(*prompt(1)) == 0
    assert kept.ask(*prompt(1, seed=9)) == 0
    assert kept.cache.statistics().expired == 1


def test_without_any_memory_nothing_is_kept_and_nothing_fails():
    engine = Engine.from_model(tiny.family("llama"), tiny.tokenizer(), prefix=PrefixSettings(memory_bytes=0))
    found = engine.caches.statistics()
    assert (found.memory_budget, found.prefixes) == (0, 0)
