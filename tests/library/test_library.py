"""Opening a library, asking it, and opening it with the wrong things."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ragblend.config import GenerationSettings
from ragblend.errors import (
    ConfigError,
    ContextOverflowError,
    LibraryError,
    LibraryMismatchError,
    PathNotFoundError,
    StoreError,
)
from ragblend.library.library import Library
from tests import tiny

SHORT = GenerationSettings(max_tokens=4)
ROOT = Path(__file__).parents[2]


class TestOpen:
    def test_makes_a_private_folder(self, open_library, docs, tmp_path):
        folder = tmp_path / "deep" / "down" / "test.rag"
        open_library(folder).add([docs])
        for path in [folder, *folder.rglob("*")]:
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path

    def test_an_empty_folder_becomes_a_library(self, open_library, tmp_path):
        (tmp_path / "empty").mkdir()
        assert open_library(tmp_path / "empty").info().documents == 0

    @pytest.mark.parametrize("options", [{"create": False}, {"read_only": True}])
    def test_a_missing_library_is_not_made_unless_asked_for(self, tmp_path, options):
        with pytest.raises(PathNotFoundError, match=r"there is no library in .*gone.rag: index documents"):
            Library.open(tmp_path / "gone.rag", **options)
        assert list(tmp_path.iterdir()) == []

    def test_a_file(self, tmp_path):
        (tmp_path / "file").write_text("x")
        with pytest.raises(PathNotFoundError, match=r"file is a file: a library is a folder"):
            Library.open(tmp_path / "file")

    def test_a_folder_of_other_things(self, docs):
        with pytest.raises(PathNotFoundError, match=r"docs holds files but no library: give a new or an empty folder"):
            Library.open(docs)

    def test_a_folder_that_may_not_be_entered(self, ordinary_user):
        closed = ordinary_user / "closed"
        closed.mkdir(mode=0o000)
        with pytest.raises(LibraryError, match="cannot be opened"):
            Library.open(closed / "test.rag")

    def test_closing_twice_and_using_it_afterwards(self, open_library, docs):
        with open_library() as library:
            library.add([docs])
        library.close()
        with pytest.raises(StoreError):
            library.info()


class TestInfo:
    def test_before_and_after_indexing(self, library, docs):
        empty = library.info()
        assert (empty.documents, empty.chunks, empty.tokens, empty.kv_bytes, empty.model) == (0, 0, 0, 0, "")
        report = library.add([docs])
        info = library.info()
        assert (info.documents, info.chunks, info.tokens) == (3, report.chunks, report.tokens)
        assert info.kv_bytes == report.kv_bytes
        assert (info.model, info.embedder, info.chunk_tokens) == ("tiny-0", "words", 128)
        assert (info.namespace, info.path) == ("default", str(library.folder))
        assert info.created_at == empty.created_at > 1_700_000_000

    def test_needs_no_model(self, open_library, docs):
        report = open_library().add([docs])
        with Library.open(open_library().folder) as library:
            assert library.info().tokens == report.tokens
            assert library.verify().ok
            assert library.remove([docs]) == 3


class TestAsk:
    def test_answers_from_the_nearest_chunks(self, library, docs, engine):
        library.add([docs])
        hits = library.search("How long is the warranty?", k=2)
        answer = library.ask("How long is the warranty?", k=2, generation=SHORT)
        assert answer.sources == tuple(hit.source for hit in hits)
        assert len(answer.token_ids) <= 4
        assert (answer.policy, answer.ratio, answer.model) == (engine.blend.policy, engine.blend.ratio, "tiny-0")
        assert answer.timings.retrieve_s > 0
        assert answer.usage.cached_tokens >= sum(len(hit.segment) for hit in hits)

    def test_full_policy_is_transformers_own_answer(self, library, docs, engine):
        library.add([docs])
        answer = library.ask("battery", k=3, policy="full", generation=SHORT)
        segments = [hit.segment for hit in reversed(library.search("battery", k=3))]  # the best one last
        ids = torch.tensor([engine.template.build(segments, "battery").token_ids])
        reference = tiny.family("llama", 0, max_position_embeddings=4096, num_hidden_layers=2)
        expected = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False)
        assert answer.token_ids == tuple(expected[0, ids.shape[1] :].tolist())

    def test_streams_the_same_text(self, library, docs):
        library.add([docs])
        answer = library.ask("battery", k=2, generation=SHORT)
        with library.stream("battery", k=2, generation=SHORT) as stream:
            assert "".join(stream).strip() == answer.text
            assert stream.answer.token_ids == answer.token_ids

    def test_settings_of_one_question(self, library, docs):
        library.add([docs])
        answer = library.ask("battery", k=3, policy="leading", ratio=0.5, generation=SHORT)
        assert (answer.policy, answer.ratio) == ("leading", 0.5)

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            ({"ratio": 1.2}, "ratio must be auto or between 0 and 1, got 1.2"),
            ({"policy": "unheard-of"}, "unheard-of"),
            ({"overflow": "explode"}, "overflow must be"),
            ({"k": 0}, "k must be at least 1, got 0"),
            ({"question": "  "}, "the question is empty"),
        ],
    )
    def test_wrong_settings(self, library, docs, wrong, message):
        library.add([docs])
        with pytest.raises(ConfigError, match=message):
            library.ask(**{"question": "battery", **wrong})

    def test_nothing_indexed(self, library):
        with pytest.raises(LibraryError, match="nothing is indexed"):
            library.ask("battery")

    def test_without_a_model(self, open_library, docs, embedder):
        open_library().add([docs])
        library = open_library(engine=None)
        assert len(library.search("battery")) == 3
        for use in (lambda: library.ask("battery"), lambda: library.add([docs]), library.repair):
            with pytest.raises(LibraryError, match=r"was opened without a model: open it with engine=Engine"):
                use()

    def test_too_much_for_the_context(self, library, tmp_path):
        for number in range(40):
            (tmp_path / f"{number}.txt").write_text(f"Robot number {number} " + "mows the lawn " * 7)
        library.add(list(tmp_path.glob("*.txt")))
        with pytest.raises(ContextOverflowError, match=r"the prompt has [\d,]+ tokens"):
            library.ask("robot", k=40, generation=SHORT)
        answer = library.ask("robot", k=40, generation=SHORT, overflow="drop")
        assert len(answer.sources) + len(answer.dropped) == 40
        assert answer.dropped
        assert min(source.score for source in answer.sources) >= max(source.score for source in answer.dropped)

    def test_in_another_process(self, library, docs, engine):
        library.add([docs])
        expected = library.ask("battery", k=2, generation=SHORT)
        script = f"""
from tests.library import conftest
from ragblend.config import GenerationSettings
from ragblend.library.library import Library
library = Library.open({str(library.folder)!r}, engine=conftest.tiny_engine(), embedder=conftest.WordEmbedder())
answer = library.ask("battery", k=2, generation=GenerationSettings(max_tokens=4))
print(answer.token_ids, answer.usage.cached_tokens)
"""
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
        assert done.stdout.strip() == f"{expected.token_ids} {expected.usage.cached_tokens}"


class TestMadeWithAnother:
    @pytest.fixture
    def indexed(self, open_library, docs) -> Path:
        with open_library() as library:
            library.add([docs])
        return library.folder

    def test_model(self, indexed, open_library, other_engine):
        with pytest.raises(
            LibraryMismatchError,
            match=r"was indexed with tiny-0, not with tiny-1: open it with the first model, or index .* new folder",
        ):
            open_library(engine=other_engine)

    def test_weights_of_the_same_name(self, indexed, open_library, other_engine, monkeypatch):
        monkeypatch.setattr(other_engine, "name", "tiny-0")
        with pytest.raises(LibraryMismatchError, match=r"with tiny-0, not with this tiny-0: its weights, tokenizer"):
            open_library(engine=other_engine)

    def test_system_prompt(self, indexed, open_library, make_engine):
        with pytest.raises(LibraryMismatchError, match="behind another system prompt, chat template or preamble"):
            open_library(engine=make_engine(system="Answer like a pirate."))

    def test_embedder(self, indexed, open_library, make_embedder, docs):
        library = open_library(embedder=make_embedder("words-2"))
        for use in (lambda: library.search("battery"), lambda: library.add([docs])):
            with pytest.raises(LibraryMismatchError, match="was embedded with words, which differs from this words"):
                use()

    def test_question_template_is_no_hindrance(self, indexed, open_library, make_engine, docs):
        library = open_library(engine=make_engine(question="Say: {question}"))
        assert library.ask("battery", k=1, generation=SHORT).usage.cached_tokens > 0
        assert library.add([docs]).unchanged == 3

    def test_an_emptied_library_belongs_to_nothing(self, indexed, open_library, other_engine, make_embedder, docs):
        with open_library() as library:
            library.remove([docs])
        library = open_library(engine=other_engine, embedder=make_embedder("words-2", buckets=50))
        assert library.add([docs]).indexed == 3
        assert library.info().model == "tiny-1"
        assert len(library.search("battery", k=3)) == 3


class TestReadOnly:
    def test_searches_and_asks_but_changes_nothing(self, open_library, docs):
        with open_library() as library:
            library.add([docs])
            library._retriever.path.unlink()
        before = {path: path.stat().st_mtime_ns for path in library.folder.rglob("*") if "sqlite-" not in path.name}
        with open_library(read_only=True) as library:
            assert library.search("battery", k=1)[0].source.title == "Battery"
            assert library.ask("battery", k=1, generation=SHORT).usage.cached_tokens > 0
            assert library.info().documents == 3
            for change in (lambda: library.add([docs]), lambda: library.remove([docs]), library.gc, library.repair):
                with pytest.raises(LibraryError, match="was opened read-only: open it for writing to change it"):
                    change()
        after = {path: path.stat().st_mtime_ns for path in library.folder.rglob("*") if "sqlite-" not in path.name}
        assert after == before

    def test_in_a_folder_that_cannot_be_written(self, open_library, ordinary_user):
        (ordinary_user / "a.txt").write_text("The battery is charged.")
        folder = ordinary_user / "test.rag"
        with open_library(folder) as library:
            library.add([ordinary_user / "a.txt"])
        folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
        for path in folders:
            path.chmod(0o500)
        try:
            with open_library(folder, read_only=True) as library:
                assert library.ask("battery", k=1, generation=SHORT).usage.cached_tokens > 0
                assert library.verify().ok
        finally:
            for path in folders:
                path.chmod(0o700)
