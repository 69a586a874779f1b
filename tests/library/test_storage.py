"""Budgets, tiers and encryption of a library, and what its metrics and logs tell."""

from __future__ import annotations

import logging

import pytest
import torch
from prometheus_client import CollectorRegistry, generate_latest

from ragblend.config import DiskLimits, GenerationSettings, StoreSettings
from ragblend.errors import ConfigError, RagblendError
from ragblend.library.library import Library
from ragblend.library.storage import open_store
from ragblend.library.texts import GivenVectors, TextDocument
from ragblend.prompt import Message
from ragblend.store.base import StoreEvents
from ragblend.store.files import SYSTEM_FILES
from ragblend.store.metrics import StoreMetrics, namespace_label

SHORT = GenerationSettings(max_tokens=4)
CANARY = "Xylophonquartz"
WAIT_S = 60.0


def kv_bytes(library: Library) -> int:
    """What really lies on the disk."""
    return sum(path.stat().st_size for path in library.store.folder.rglob("*") if path.is_file())


def entry_bytes(library: Library) -> int:
    return max(entry.nbytes for entry in library.store.entries())


class TestBudget:
    @pytest.fixture
    def unlimited(self, open_library, many_docs, tmp_path) -> Library:
        library = open_library(tmp_path / "unlimited.rag")
        library.add([many_docs])
        return library

    def limited(self, open_library, unlimited, entries: int, **options: object) -> Library:
        budget = entries * entry_bytes(unlimited)
        settings = StoreSettings(disk=DiskLimits(budget=budget, low_watermark=1.0))
        return open_library(store=settings, **options)

    def test_evicts_kv_and_no_documents(self, open_library, unlimited, many_docs):
        library = self.limited(open_library, unlimited, entries=4)
        report = library.add([many_docs])
        assert (report.documents, report.skipped) == (12, ())
        assert kv_bytes(library) <= library.info().store.disk_budget
        assert library.info().store.evicted == 12 - len(library.store.entries()) >= 8
        verified = library.verify()
        assert (verified.ok, verified.evicted, verified.missing) == (True, library.info().store.evicted, ())

    def test_answers_are_those_without_one(self, open_library, unlimited, many_docs):
        library = self.limited(open_library, unlimited, entries=4)
        library.add([many_docs])
        for number in range(0, 12, 3):
            question = f"colour of machine {number}"
            expected = unlimited.ask(question, k=6, ratio=1.0, generation=SHORT)
            answer = library.ask(question, k=6, ratio=1.0, generation=SHORT)
            assert answer.token_ids == expected.token_ids
            assert answer.hits + answer.misses == 6
        assert library.store.pins() == set()

    def test_is_kept_by_whoever_opens_the_library_next(self, open_library, unlimited, many_docs):
        self.limited(open_library, unlimited, entries=4).close()
        library = open_library()
        library.add([many_docs])
        assert kv_bytes(library) <= library.info().store.disk_budget

    def test_repair_fills_the_room_that_there_is(self, open_library, unlimited, many_docs, watched):
        library = self.limited(open_library, unlimited, entries=4)
        library.add([many_docs])
        kept = {entry.key for entry in library.store.entries()}
        assert library.repair().recomputed == 0
        assert {entry.key for entry in library.store.entries()} == kept
        library.close()
        library = self.limited(open_library, unlimited, entries=8, engine=watched)
        assert library.repair().recomputed >= 3
        assert kv_bytes(library) <= library.info().store.disk_budget
        library.close()
        library = open_library(store=StoreSettings(disk=DiskLimits()))
        library.repair()
        assert library.info().store.evicted == 0
        assert library.verify().evicted == 0

    def test_can_be_seen(self, open_library, unlimited):
        limits = DiskLimits(budget=10**9, total_budget=10**10, free_space_floor=5, ttl_s=60)
        store = open_library(store=StoreSettings(disk=limits)).info().store
        assert (store.disk_budget, store.total_disk_budget) == (10**9, 10**10)
        assert (store.free_space_floor, store.ttl_s, store.evicted) == (5, 60, 0)


class TestNamespaces:
    @pytest.mark.parametrize("remote", [False, True])
    def test_the_same_document_is_nobody_elses_hit(self, open_library, docs, watched, tmp_path, remote):
        url = f"file://{tmp_path}/remote" if remote else None
        settings = StoreSettings(memory_budget=10**8, remote=url)
        first = open_library(namespace="first", store=settings)
        first.add([docs])
        first.ask("warranty", k=3, generation=SHORT)
        assert first.store.flush(WAIT_S)
        second = open_library(namespace="second", store=settings, engine=watched)
        second.add([docs])
        assert len(watched.prefilled) == 3
        own = {entry.key for entry in second.store.entries()}
        assert own.isdisjoint(entry.key for entry in first.store.entries())
        for key in own:
            for tier in (first.store, first.store.memory, first.store.remote):
                assert tier is None or not tier.contains(key)
        second.ask("warranty", k=3, generation=SHORT)
        assert second.store.memory.nbytes() == first.store.memory.nbytes()
        assert not second.store.misses
        second.remove([docs])
        assert second.store.nbytes() == 0
        assert not any(second.store.memory.contains(key) for key in own)
        assert first.ask("warranty", k=3, generation=SHORT).hits == 3

    def test_one_evicts_nothing_of_another(self, open_library, docs, many_docs):
        first = open_library(namespace="first")
        first.add([docs])
        budget = 3 * entry_bytes(first)
        second = open_library(namespace="second", store=StoreSettings(disk=DiskLimits(budget=budget)))
        second.add([many_docs])
        assert second.info().store.evicted > 0
        assert first.info().store.evicted == 0
        assert first.verify().ok


class TestRemote:
    @pytest.fixture
    def url(self, tmp_path) -> str:
        return f"file://{tmp_path}/remote"

    def test_a_second_machine_computes_nothing_again(self, open_library, docs, url, watched, tmp_path):
        first = open_library(tmp_path / "first.rag", store=StoreSettings(remote=url))
        first.add([docs])
        assert first.store.flush(WAIT_S)
        second = open_library(tmp_path / "second.rag", store=StoreSettings(remote=url), engine=watched)
        second.add([docs])
        assert watched.prefilled == []
        assert second.verify().ok
        assert second.info().store.pending == 0

    def test_is_remembered(self, open_library, docs, url):
        open_library(store=StoreSettings(remote=url)).close()
        library = open_library()
        library.add([docs])
        assert library.store.flush(WAIT_S)
        assert library.info().store.remote == url
        assert library.store.remote.nbytes() == library.store.nbytes()
        library.remove([docs])
        assert library.store.flush(WAIT_S)
        assert library.store.remote.nbytes() == 0
        library.close()
        assert open_library(store=StoreSettings(remote="")).store.remote is None
        assert open_library().store.remote is None

    def test_that_is_gone_costs_no_answer(self, open_library, docs, url, tmp_path):
        (tmp_path / "remote").write_text("in the way")
        library = open_library(namespace="without remote", store=StoreSettings(remote=url))
        library.add([docs])
        expected = library.ask("warranty", k=3, ratio=1.0, generation=SHORT)
        for entry in library.store.entries():
            library.store.evict([entry.key], "budget")
        library.engine.caches.clear(namespace=library.namespace)
        answer = library.ask("warranty", k=3, ratio=1.0, generation=SHORT)
        assert (answer.token_ids, answer.misses) == (expected.token_ids, 3)
        assert library.store.remote.misses == {"remote": 3 + 3}  # for indexing and for asking
        assert library.info().store.pending == 3

    def test_brings_back_what_was_evicted(self, open_library, docs, url):
        library = open_library(namespace="evicted", store=StoreSettings(remote=url))
        library.add([docs])
        assert library.store.flush(WAIT_S)
        for entry in library.store.entries():
            library.store.evict([entry.key], "budget")
        library.engine.caches.clear(namespace=library.namespace)
        assert library.ask("warranty", k=3, generation=SHORT).hits == 3
        assert library.store.flush(WAIT_S)
        assert library.verify().evicted == 0


class TestDeviceTier:
    SETTINGS = StoreSettings(device_budget=10**6, memory_budget=10**7)

    def test_is_in_front_of_memory_on_the_device_that_computes(self, library):
        arguments = (library.folder, library.catalogue, "default", SYSTEM_FILES, self.SETTINGS, "raw", StoreEvents())
        store = open_store(*arguments, torch.device("meta"))
        assert (store.device.device.type, store.device.budget_bytes) == ("meta", 10**6)
        assert (store.memory.budget_bytes, store.memory.page_locked) == (10**7, False)
        store.device.close()
        store.memory.close()

    def test_is_not_there_where_a_cpu_computes_or_nothing_does(self, open_library):
        assert open_library(store=self.SETTINGS).store.device is None
        assert open_library(store=self.SETTINGS, engine=None).store.device is None

    def test_a_negative_budget_is_refused(self):
        with pytest.raises(ConfigError, match="device budget must not be negative"):
            StoreSettings(device_budget=-1)


class TestMetricsAndLogs:
    def test_count_what_happens(self, open_library, docs):
        registry = CollectorRegistry()
        metrics = StoreMetrics(registry)
        settings = StoreSettings(memory_budget=10**8)
        library = open_library(metrics=metrics, store=settings)
        other = open_library(namespace="other", metrics=metrics, store=settings)
        library.add([docs])
        library.ask("warranty", k=3, generation=SHORT)
        library.ask("warranty", k=3, generation=SHORT)
        next(iter(library.store.folder.rglob("*.safetensors"))).write_bytes(b"damaged")
        for entry in library.store.entries():
            library.store.memory.delete(entry.key)
        library.ask("warranty", k=3, generation=SHORT)
        library.store.evict([library.store.entries()[0].key], "budget")

        def value(name: str, namespace: str = "default", **labels: str) -> float:
            labels = {"namespace": namespace_label(namespace), **labels}
            return registry.get_sample_value(f"ragblend_{name}", labels) or 0.0

        assert value("store_hits_total", tier="disk") == 5
        assert value("store_hits_total", tier="memory") == 3
        assert value("store_misses_total", tier="disk", cause="corrupt") == 1
        assert value("store_misses_total", tier="memory", cause="missing") == 6
        assert value("store_evictions_total", tier="disk", reason="budget") == 1
        assert value("store_bytes", tier="disk") == library.store.nbytes() > 0
        assert value("store_bytes", tier="memory") == library.store.memory.nbytes() > 0
        assert value("store_loaded_bytes_total", tier="disk") > 0
        assert value("store_load_seconds_count", tier="disk") == 5
        assert value("chunk_compute_seconds_count") == 3
        assert value("chunk_compute_seconds_sum") > 0
        assert value("answer_load_seconds_count") == value("answer_recompute_seconds_count") == 3
        assert value("store_hits_total", "other", tier="disk") == 0
        other.close()
        library.close()
        assert b"ragblend_store_bytes" in generate_latest(registry)

    def test_without_metrics_nothing_is_registered(self, library, docs):
        from prometheus_client import REGISTRY

        library.add([docs])
        assert b"ragblend" not in generate_latest(REGISTRY)

    def test_hold_no_word_of_documents_questions_or_keys(self, open_library, docs, key_file, tmp_path, caplog):
        (docs / f"{CANARY}.md").write_text(f"# {CANARY}\n\nThe {CANARY} of the robot is {CANARY}.\n")
        registry = CollectorRegistry()
        (tmp_path / "remote").write_text("in the way")
        settings = StoreSettings(
            memory_budget=10**8,
            disk=DiskLimits(budget=10**8, ttl_s=1000),
            remote=f"file://{tmp_path}/remote",
            encryption_key_file=key_file,
        )
        with caplog.at_level(logging.DEBUG):
            library = open_library(namespace=f"{CANARY}-tenant", store=settings, metrics=StoreMetrics(registry))
            library.add([docs])
            library.ask(f"What is {CANARY}?", k=4, generation=SHORT)
            for path in library.store.folder.rglob("*.safetensors"):
                path.write_bytes(b"damaged")
            library.store.memory.delete(library.store.entries()[0].key)
            library.ask(f"What is {CANARY}?", k=4, generation=SHORT)
            library.store.flush(WAIT_S)
            library.store.evict([entry.key for entry in library.store.entries()], "budget")
            library.complete(f"{CANARY} " * 40, generation=SHORT).complete()
            library.close()
        told = [record for record in caplog.records if record.name.startswith("ragblend")]
        messages = " ".join(record.getMessage() for record in told)
        assert all(word in messages for word in ("not usable", "evicted", "remote tier"))
        for text in (str([record.__dict__ for record in told]), caplog.text, generate_latest(registry).decode()):
            assert CANARY not in text
            assert "5b5b" not in text

    def test_nor_do_errors(self, open_library, docs, tmp_path):
        (docs / "robot.md").write_text(f"# {CANARY}\n\nThe {CANARY} of the robot is {CANARY}.\n")
        library = open_library()
        library.add([docs])
        given = open_library(tmp_path / "given.rag")
        given.texts.add([TextDocument("a", CANARY, embedding=[1.0, 0.0])])

        def damage() -> None:
            with library.catalogue.transaction() as connection:
                connection.execute("UPDATE chunks SET checksum = 'none'")
            library.search(CANARY)

        for use in (
            lambda: library.ask(f"{CANARY} " * 1000, k=1, generation=SHORT),
            lambda: library.chat([Message("user", (f"{CANARY} " * 1000,))], generation=SHORT).complete(),
            lambda: library.texts.add([TextDocument("a", f"{CANARY} " * 1000)]),
            lambda: library.texts.add([TextDocument("a", CANARY, {"written": object()})]),
            lambda: given.embed(CANARY),
            lambda: GivenVectors(2).embed_question(CANARY),
            lambda: library.engine.caches.create([Message("user", (CANARY,))], name="short"),
            damage,
        ):
            with pytest.raises(RagblendError) as raised:
                use()
            assert CANARY not in str(raised.value)
