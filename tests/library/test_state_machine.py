"""A library against a dictionary: whatever is done to it, and whenever it crashes, both say the same."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ragblend.config import ChunkSettings, GenerationSettings, StoreSettings
from ragblend.errors import LibraryError
from ragblend.library.library import Library
from ragblend.store.files import Files
from tests.library.conftest import WordEmbedder, tiny_engine
from tests.store.faults import WatchedFiles

SHORT = GenerationSettings(max_tokens=3)
NAMES = st.sampled_from(["a", "b", "c", "d"])
WORDS = st.sampled_from(["robot", "garden", "battery", "blade"])

engine = functools.cache(tiny_engine)


class CrashError(BaseException):
    """The process is gone: not an Exception, so that nothing handles it."""


class LibraryMachine(RuleBasedStateMachine):
    """Documents by name, in a library that is changed, asked, damaged, evicted from, crashed and reopened."""

    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
        (self.folder / "docs").mkdir()
        self.expected: dict[str, str] = {}
        self.library = self.opened()

    def opened(self, files: Files | None = None) -> Library:
        return Library.open(
            self.folder / "test.rag",
            engine=engine(),
            embedder=WordEmbedder(),
            chunk=ChunkSettings(64),
            files=files or Files(),
            store=self.settings(),
        )

    def settings(self) -> StoreSettings:
        return StoreSettings()

    def path(self, name: str) -> Path:
        return self.folder / "docs" / f"{name}.txt"

    def write(self, name: str, word: str, size: int) -> str:
        text = " ".join(f"Sentence {number} of the {word}." for number in range(size))
        self.path(name).write_text(text)
        return text

    @rule(name=NAMES, word=WORDS, size=st.integers(1, 6))
    def add_or_replace(self, name: str, word: str, size: int) -> None:
        text = self.write(name, word, size)
        self.library.add(self.path(name))
        self.expected[name] = text

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.expected)))
        assert self.library.remove(self.path(name)) == 1
        del self.expected[name]

    @rule(name=NAMES, word=WORDS, size=st.integers(1, 6), moment=st.integers(0, 60))
    def crash_while_adding(self, name: str, word: str, size: int, moment: int) -> None:
        def watch(number: int, _: str) -> None:
            if number >= moment:
                raise CrashError

        text = self.write(name, word, size)
        self.library.close()
        crashing = self.opened(WatchedFiles(watch))
        with contextlib.suppress(CrashError):
            crashing.add(self.path(name))
        crashing.close()
        self.library = self.opened()
        if self.texts().get(name) == text:  # the old version or the new one, nothing else
            self.expected[name] = text

    @precondition(lambda self: self.entries())
    @rule(data=st.data(), how=st.sampled_from(["evict", "damage", "lose"]))
    def harm_an_entry(self, data: st.DataObject, how: str) -> None:
        key = data.draw(st.sampled_from(self.entries()))
        (blob,) = self.folder.glob(f"test.rag/kv/*/*/{key}.safetensors")
        if how == "evict":
            self.library.store.delete(key)
        elif how == "lose":
            blob.unlink()
        else:
            content = bytearray(blob.read_bytes())
            content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
            blob.write_bytes(content)

    @rule(word=WORDS)
    def ask(self, word: str) -> None:
        """All documents are found and nothing else, and the answer is that of a run without a cache."""
        if not self.expected:
            with pytest.raises(LibraryError, match="nothing is indexed"):
                self.library.ask(word)
            return
        asked = self.library.ask(word, k=20, ratio=1.0, generation=SHORT)
        uncached = self.library.ask(word, k=20, policy="full", generation=SHORT)
        assert asked.token_ids == uncached.token_ids
        assert {Path(source.document).stem for source in asked.sources} <= self.expected.keys()
        assert {source.text for source in asked.sources} == {text for _, text in self.chunks()}

    @rule()
    def repair(self) -> None:
        self.library.repair()
        assert self.library.verify().ok

    @rule()
    def collect_garbage(self) -> None:
        self.library.gc()
        assert self.library.verify().orphans == ()

    @rule()
    def reopen(self) -> None:
        self.library.close()
        self.library = self.opened()

    @invariant()
    def documents_are_as_expected(self) -> None:
        if hasattr(self, "library"):
            assert self.texts() == self.expected

    def teardown(self) -> None:
        if not hasattr(self, "library"):
            return
        self.library.repair()
        self.library.gc()
        report = self.library.verify(audit=2)
        self.library.close()
        shutil.rmtree(self.folder)
        assert report.ok
        assert report.orphans == ()

    def entries(self) -> list[str]:
        """Keys whose files are there, sorted, once what is kept of prompts is written as well."""
        self.library.prefixes.flush()
        return sorted(path.stem for path in self.folder.glob("test.rag/kv/*/*/*.safetensors"))

    def texts(self) -> dict[str, str]:
        """The documents as the catalogue has them."""
        found: dict[str, list[str]] = {}
        for path, text in self.chunks():
            found.setdefault(Path(path).stem, []).append(text)
        return {name: " ".join(parts) for name, parts in found.items()}

    def chunks(self) -> list[tuple[str, str]]:
        records = self.library._records
        found = sorted(records.chunks(records.chunk_ids()).values(), key=lambda chunk: (chunk.document, chunk.ordinal))
        return [(chunk.document, chunk.text) for chunk in found]


class EncryptedLibraryMachine(LibraryMachine):
    """The same, encrypted; and no word of a document is ever in a file."""

    def settings(self) -> StoreSettings:
        key = self.folder / "key"
        key.touch(mode=0o600)
        key.write_text("5b" * 32)
        return StoreSettings(encryption_key_file=key)

    @invariant()
    def nothing_lies_open(self) -> None:
        if hasattr(self, "library"):
            files = [path.read_bytes() for path in (self.folder / "test.rag").rglob("*") if path.is_file()]
            assert not any(word in data for data in files for word in (b"Sentence", b"/docs/"))


def run(machine: type[LibraryMachine], examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize(("machine", "examples"), [(LibraryMachine, 8), (EncryptedLibraryMachine, 3)])
def test_it_says_the_same_as_a_dictionary(machine, examples):
    run(machine, examples, steps=12)


@pytest.mark.long
@pytest.mark.parametrize(("machine", "examples"), [(LibraryMachine, 200), (EncryptedLibraryMachine, 50)])
def test_it_says_the_same_as_a_dictionary_for_long(machine, examples):
    run(machine, examples, steps=40)
