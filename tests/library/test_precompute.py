"""KV for texts without documents: computed once, owned, forgotten."""

from __future__ import annotations

import re
import threading

import pytest

from ragblend.config import GenerationSettings
from ragblend.errors import ConfigError, LibraryBusyError, LibraryError, LibraryMismatchError
from ragblend.library import layout
from ragblend.library.library import Library
from ragblend.library.lock import writing
from ragblend.library.texts import TextDocument
from ragblend.prompt import Message

SHORT = GenerationSettings(max_tokens=2)
WARRANTY = "The warranty of the robot lasts two years."
BATTERY = "The battery of the robot is charged in ninety minutes."
BLADES = "Blades are changed every spring by the gardener."


def hits(library: Library, text: str) -> int:
    return library.chat([Message("user", (f"{text}\n\nWhich?",))], generation=SHORT).complete().hits


class TestPrecompute:
    def test_reports_what_it_did(self, library):
        report = library.precompute([WARRANTY, f"\n {BATTERY} \n"])
        assert (report.texts, report.computed, report.unchanged, report.skipped) == (2, 2, 0, ())
        assert report.tokens == len(WARRANTY) + len(BATTERY)  # the tiny tokenizer has one token a byte
        assert report.kv_bytes == library.info().kv_bytes > 0
        assert (library.info().texts, library.info().documents) == (2, 0)

    def test_of_known_texts_computes_nothing(self, open_library, watched):
        library = open_library(engine=watched)
        library.precompute([WARRANTY, BATTERY])
        report = library.precompute([f"{BATTERY}\n", WARRANTY, BLADES, BLADES])
        assert (report.texts, report.computed, report.unchanged) == (4, 1, 3)
        assert len(watched.prefilled) == 3

    def test_needs_no_embedder(self, open_library, tmp_path):
        class NoEmbedder:
            @property
            def digest(self) -> str:
                raise AssertionError("nothing is to be embedded")

        open_library(tmp_path / "other.rag", embedder=NoEmbedder()).precompute([WARRANTY])

    def test_streams(self, library):
        taken = []

        def texts():
            for number in range(70):
                taken.append(library.info().texts)
                yield f"{WARRANTY} Edition {number}."

        assert library.precompute(texts()).computed == 70
        assert taken[-1] == 64

    def test_progress(self, library):
        events = []

        class Recorder:
            def __getattr__(self, name):
                return lambda *values: events.append((name, *values))

        library.precompute([WARRANTY, "short"], Recorder())
        assert [event[0] for event in events] == ["start", "skipped", "chunk", "finish"]
        assert events[2] == ("chunk", len(WARRANTY))

    @pytest.mark.parametrize(
        ("text", "name", "reason"),
        [
            ("", "", "empty"),
            (" \n ", "", "empty"),
            ("Two years.", "Two years.", "10 characters: texts of fewer than 32 are computed in place"),
            ("x" * 5000, "x" * 59 + "…", r"5,000 tokens: the context has room for 3,\d{3}"),
            (
                f"{WARRANTY}\ud800",
                "The warranty of the robot lasts two years.?",
                r"not valid Unicode \(a lone surrogate\)",
            ),
        ],
    )
    def test_skips_what_is_not_worth_a_chunk_or_cannot_be_one(self, library, text, name, reason):
        report = library.precompute([text, BATTERY])
        [skipped] = report.skipped
        assert skipped.path == name
        assert re.fullmatch(reason, skipped.reason)
        assert (report.texts, report.computed) == (2, 1)

    def test_refuses_what_is_no_text(self, library):
        with pytest.raises(ConfigError, match="a text must be a string, or a Passage, got bytes"):
            library.precompute([WARRANTY, b"bytes"])

    def test_one_string_is_not_a_list_of_texts(self, library):
        for use in (library.precompute, library.forget):
            with pytest.raises(ConfigError, match="a list of texts, not one string"):
                use(WARRANTY)

    def test_keeps_finished_texts_when_it_is_interrupted(self, library):
        def texts():
            yield from (f"{WARRANTY} Edition {number}." for number in range(40))
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            library.precompute(texts())
        assert library.info().texts == 32
        assert library.verify().ok

    def test_several_threads_at_once(self, library):
        texts = [f"{WARRANTY} Edition {number}." for number in range(12)]
        reports = []
        threads = [threading.Thread(target=lambda: reports.append(library.precompute(texts))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert library.info().texts == 12
        assert all(report.computed + report.unchanged == 12 for report in reports)
        assert library.verify().ok
        assert library.verify().orphans == ()

    def test_waits_for_another_writer_and_then_gives_up(self, library, monkeypatch):
        monkeypatch.setattr("ragblend.library.lock.BUSY_TIMEOUT_S", 0.05)
        with writing(library.folder / layout.WRITER_LOCK), pytest.raises(LibraryBusyError):
            library.precompute([WARRANTY])


class TestOwnership:
    """An entry stays as long as a chunk or a text needs it."""

    def test_texts_outlive_documents_and_the_other_way_round(self, open_library, watched):
        library = open_library(engine=watched)
        library.texts.add([TextDocument("a", WARRANTY)])
        assert library.precompute([WARRANTY]).unchanged == 1  # the same ids, so the same entry
        assert len(watched.prefilled) == 1
        library.texts.remove(["a"])
        assert hits(library, WARRANTY) == 1
        library.texts.add([TextDocument("a", WARRANTY)])
        assert library.forget([WARRANTY]) == 1
        assert hits(library, WARRANTY) == 1
        library.texts.remove(["a"])
        assert hits(library, WARRANTY) == 0
        assert library.info().kv_bytes == 0
        assert len(watched.prefilled) == 1

    def test_gc_leaves_them(self, library):
        library.precompute([WARRANTY])
        report = library.gc()
        assert (report.entries, report.files) == (0, 0)
        assert library.verify().entries == 1
        assert library.verify().orphans == ()

    def test_verify_and_repair_know_them(self, open_library, library, watched):
        library.precompute([WARRANTY, BATTERY])
        [path, _] = sorted(library.folder.glob("kv/**/*.safetensors"))
        path.unlink()
        assert library.verify().missing == (path.stem,)
        repaired = open_library(engine=watched).repair()
        assert repaired.recomputed == 1
        assert library.verify().ok

    def test_a_lost_entry_is_computed_again(self, library):
        library.precompute([WARRANTY])
        library.store.discard(library.store.entries()[0].key)
        assert library.precompute([WARRANTY]).computed == 1
        assert hits(library, WARRANTY) == 1


class TestForget:
    def test_removes_texts_and_their_kv(self, library):
        library.precompute([WARRANTY, BATTERY])
        assert library.forget([f" {WARRANTY}\n", BLADES]) == 1
        assert library.info().texts == 1
        assert (hits(library, WARRANTY), hits(library, BATTERY)) == (0, 1)
        assert library.verify().orphans == ()

    def test_of_other_namespaces_leaves_them_alone(self, library, open_library):
        other = open_library(namespace="other")
        for each in (library, other):
            each.precompute([WARRANTY])
        assert other.forget([WARRANTY]) == 1
        assert (hits(library, WARRANTY), hits(other, WARRANTY)) == (1, 0)

    def test_needs_no_model(self, library):
        library.precompute([WARRANTY])
        with Library.open(library.folder) as without:
            assert without.forget([WARRANTY]) == 1
            with pytest.raises(LibraryError, match="opened without a model"):
                without.precompute([WARRANTY])


class TestBelonging:
    def test_a_library_with_texts_belongs_to_one_model(self, library, open_library, other_engine):
        library.precompute([WARRANTY])
        assert library.info().model == "tiny-0"
        with pytest.raises(LibraryMismatchError, match="not with tiny-1"):
            open_library(engine=other_engine)
        library.forget([WARRANTY])
        open_library(engine=other_engine).precompute([WARRANTY])
        assert library.info().model == "tiny-1"

    def test_but_to_any_embedder(self, library, open_library, docs, make_embedder):
        library.precompute([WARRANTY])
        assert open_library(embedder=make_embedder("words-2")).add([docs]).indexed == 3

    def test_read_only(self, library, open_library):
        library.precompute([WARRANTY])
        reader = open_library(read_only=True)
        for change in (lambda: reader.precompute([BATTERY]), lambda: reader.forget([WARRANTY])):
            with pytest.raises(LibraryError, match="read-only"):
                change()
        assert hits(reader, WARRANTY) == 1
