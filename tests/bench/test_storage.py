"""Storage that is slow on purpose."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest

from ragblend.bench.storage import SlowDiskStore
from ragblend.blend.blender import blend
from ragblend.blend.policies import Policy, Request
from ragblend.engine import Engine
from ragblend.errors import ConfigError
from ragblend.models.rows import RowRun
from ragblend.prompt import Segment
from ragblend.store.catalogue import Catalogue
from ragblend.testing import StoreConformance, numbered_key, random_kv
from tests import tiny


class TestSlowDiskStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[SlowDiskStore]:
        with (
            closing(Catalogue(tmp_path / "catalogue.db")) as catalogue,
            closing(SlowDiskStore(tmp_path, catalogue, 1e9)) as store,
        ):
            yield store


def test_readers_share_the_rate(tmp_path: Path) -> None:
    with closing(Catalogue(tmp_path / "catalogue.db")) as catalogue:
        store = SlowDiskStore(tmp_path, catalogue, 100_000)
        kv = random_kv(tokens=100, layers=2)
        for number in range(2):
            store.put(numbered_key(number), kv)
        began = time.perf_counter()
        for number in range(2):
            reader = store.open(numbered_key(number), kv.token_ids)
            assert reader is not None
            with closing(reader):
                for layer in range(2):
                    reader.layer(layer)
        assert time.perf_counter() - began >= 2 * kv.nbytes / 100_000
        store.close()


def test_a_rate_of_nothing_is_refused(tmp_path: Path) -> None:
    with closing(Catalogue(tmp_path / "catalogue.db")) as catalogue, pytest.raises(ConfigError, match="more than 0"):
        SlowDiskStore(tmp_path, catalogue, 0)


LAYER_S = 0.1


class Slow(Policy):
    """Recomputes nothing, and takes its time over every layer."""

    name: ClassVar[str] = "slow"

    def select(self, request: Request) -> RowRun:
        run = request.run(request.plan.mandatory)
        run.on_attend = lambda *_: time.sleep(LAYER_S)
        return run


def test_loading_hides_behind_computing(tiny_engine: Engine, tmp_path: Path) -> None:
    """Each takes a tenth of a second a layer: together they take little more than one of them."""
    chunks = [tiny.random_ids(60, seed) for seed in range(4)]
    segments = [Segment("chunk", ids, numbered_key(number)) for number, ids in enumerate(chunks)]
    prompt = tiny_engine.template.build(segments, "Why?")
    layers = tiny_engine.adapter.layer_count
    kvs = list(tiny_engine.prefill(chunks))
    rate = sum(kv.nbytes for kv in kvs) / (layers * LAYER_S)
    with closing(Catalogue(tmp_path / "catalogue.db")) as catalogue:
        store = SlowDiskStore(tmp_path, catalogue, rate)
        for number, kv in enumerate(kvs):
            store.put(numbered_key(number), kv)
        blended = blend(tiny_engine.adapter, tiny_engine.anchor, prompt, policy=Slow(), ratio=0.0, store=store)
        store.close()
    loading, computing = blended.load_s + blended.hidden_load_s, blended.recompute_s
    assert (blended.hits, blended.misses) == (len(chunks), 0)
    # A little less where the machine stalls the reader, who then finds what the device has read ahead meanwhile.
    assert min(loading, computing) >= 0.9 * layers * LAYER_S
    assert blended.load_s + blended.recompute_s < 0.85 * (loading + computing)
