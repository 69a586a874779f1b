"""Adding documents: what is new, what is known, what has changed, what is gone."""

from __future__ import annotations

import weakref

import pytest

from ragblend.config import ChunkSettings
from ragblend.errors import PathNotFoundError


class Events:
    """Progress that remembers what it was told."""

    def __init__(self) -> None:
        self.all: list[tuple[object, ...]] = []

    def __getattr__(self, name: str):
        return lambda *arguments: self.all.append((name, *arguments))

    def named(self, name: str) -> list[tuple[object, ...]]:
        return [arguments for event, *arguments in self.all if event == name]


def counts(report) -> tuple[int, int, int, int]:
    return report.indexed, report.unchanged, report.replaced, report.removed


def paragraphs(count: int, word: str = "robot") -> str:
    return "\n\n".join(
        f"Paragraph {number} tells of the {word} and what it does all day long." for number in range(count)
    )


def test_report_of_a_first_run(library, docs):
    report = library.add([docs])
    assert counts(report) == (3, 0, 0, 0)
    assert (report.documents, report.chunks, report.skipped) == (3, 3, ())
    assert report.tokens == sum(len(hit.segment) for hit in library.search("x", k=10))
    assert report.kv_bytes == library.store.nbytes() > 0
    assert report.seconds > 0


def test_a_second_run_computes_nothing(open_library, watched, docs):
    open_library().add([docs])
    report = open_library(engine=watched).add([docs])
    assert counts(report) == (0, 3, 0, 0)
    assert (report.documents, watched.prefilled) == (3, [])


def test_a_changed_document_is_replaced_and_only_its_new_chunks_computed(open_library, watched, docs):
    library = open_library(engine=watched)
    (docs / "long.txt").write_text(paragraphs(6))
    before = library.add([docs])
    watched.prefilled.clear()
    (docs / "long.txt").write_text(paragraphs(6) + "\n\nA last paragraph, which is new and about tulips only.")
    report = library.add([docs])
    assert counts(report) == (0, 3, 1, 0)
    assert 1 <= len(watched.prefilled) < before.chunks
    assert library.search("tulips", k=1)[0].document == str(docs / "long.txt")
    assert library.verify().ok
    assert library.verify().orphans == ()


def test_chunks_of_the_old_version_are_gone_with_their_kv(library, docs):
    library.add([docs])
    (old,) = library.search("warranty", k=1)
    (docs / "warranty.md").write_text("# Warranty\n\nIt now lasts five years.\n")
    library.add([docs])
    assert [hit.text for hit in library.search("warranty", k=1)] == ["It now lasts five years."]
    assert not library.store.contains(old.segment.key)


def test_a_file_that_is_gone_from_an_indexed_folder_is_removed(library, docs):
    library.add([docs])
    (docs / "blades.txt").unlink()
    report = library.add([docs])
    assert counts(report) == (0, 2, 0, 1)
    assert report.documents == 2
    assert library.verify().orphans == ()


def test_a_file_that_can_no_longer_be_read_keeps_its_old_version(library, docs):
    library.add([docs])
    (docs / "blades.txt").write_bytes(b"\0")
    report = library.add([docs])
    assert (counts(report), len(report.skipped), report.documents) == ((0, 2, 0, 0), 1, 3)
    assert library.search("blades", k=1)[0].document == str(docs / "blades.txt")


def test_a_moved_document_keeps_its_kv(open_library, watched, docs):
    library = open_library(engine=watched)
    library.add([docs])
    watched.prefilled.clear()
    (docs / "blades.txt").rename(docs / "knives.txt")
    assert counts(library.add([docs])) == (1, 2, 0, 1)
    assert watched.prefilled == []
    assert library.verify().ok


def test_text_that_moves_between_documents_of_one_run_keeps_its_kv(library, docs):
    library.add([docs])
    (docs / "new.txt").write_text((docs / "blades.txt").read_text())
    (docs / "blades.txt").write_text("Something else.")
    library.add([docs])
    assert library.verify().ok


def test_the_same_text_is_stored_once(open_library, watched, docs):
    library = open_library(engine=watched)
    for number in range(50):
        (docs / f"copy-{number}.txt").write_text((docs / "blades.txt").read_text())
    report = library.add([docs])
    assert (report.documents, report.chunks) == (53, 53)
    assert len(library.store.entries()) == len(watched.prefilled) == 3
    library.remove([docs / "blades.txt", *(docs / f"copy-{number}.txt" for number in range(49))])
    assert library.verify().ok
    library.remove([docs / "copy-49.txt"])
    assert len(library.store.entries()) == 2


def test_other_chunk_settings_replace_documents(open_library, docs):
    (docs / "long.txt").write_text(paragraphs(6))
    with open_library() as library:
        chunks = library.add([docs]).chunks
    with open_library(chunk=ChunkSettings(64)) as library:
        report = library.add([docs])
    assert counts(report) == (0, 0, 4, 0)
    assert report.chunks > chunks
    with open_library(chunk=None) as library:
        assert library.chunk == ChunkSettings(64)
        assert counts(library.add([docs])) == (0, 4, 0, 0)


def test_chunks_fill_several_batches(library, tmp_path):
    files = [tmp_path / f"{number:02}.txt" for number in range(5)]
    for number, file in enumerate(files):
        file.write_text(paragraphs(28, f"number{number}"))
    report = library.add(files)
    assert report.chunks > 64
    assert library.verify().ok
    assert library.search("number3", k=1)[0].document == str(files[3])


def test_progress(library, docs):
    (docs / "bad.bin").write_bytes(b"\0")
    (docs / ".hidden").touch()
    events = Events()
    report = library.add([docs], events)
    assert events.all[0] == ("start", 4)
    assert events.all[-1] == ("finish",)
    assert sorted(path for (path,) in events.named("document")) == sorted(map(str, docs.glob("[!.]*.[mt]*")))
    assert [tuple(event) for event in events.named("skipped")] == [
        (str(docs / "bad.bin"), "binary file (contains NUL bytes)"),
    ]
    assert sum(tokens for (tokens,) in events.named("chunk")) == report.tokens
    events = Events()
    library.add([docs], events)
    assert (len(events.named("document")), events.named("chunk")) == (3, [])


def test_a_single_path_needs_no_list(library, docs):
    assert library.add(docs).indexed == 3
    assert library.add(str(docs)).unchanged == 3
    assert library.remove(docs / "battery.md") == 1


class TestNothingToIndex:
    def test_a_missing_path(self, library, docs):
        with pytest.raises(PathNotFoundError, match="no such file or folder"):
            library.add([docs, docs / "gone.md"])
        assert library.info().documents == 0

    def test_an_empty_folder(self, library, tmp_path):
        folder = tmp_path / "empty"
        folder.mkdir()
        with pytest.raises(PathNotFoundError, match=r"no documents found in .*empty: give a folder with text in it"):
            library.add([folder])

    def test_no_paths(self, library):
        with pytest.raises(PathNotFoundError, match="no documents found"):
            library.add([])

    def test_an_emptied_folder_removes_its_documents(self, library, docs):
        library.add([docs])
        for path in docs.iterdir():
            path.unlink()
        report = library.add([docs])
        assert (counts(report), report.documents, report.kv_bytes) == ((0, 0, 0, 3), 0, 0)


class TestRemove:
    def test_a_document_and_its_kv(self, library, docs):
        library.add([docs])
        assert library.remove([docs / "battery.md"]) == 1
        assert len(library.search("battery")) == 2
        assert library.verify().orphans == ()

    def test_a_folder_whose_files_are_gone(self, library, docs):
        library.add([docs])
        for path in docs.iterdir():
            path.unlink()
        docs.rmdir()
        assert library.remove([docs]) == 3
        assert library.info().kv_bytes == 0

    def test_a_folder_is_no_prefix_of_names(self, library, docs):
        sibling = docs.parent / "docs-2"
        sibling.mkdir()
        (sibling / "a.txt").write_text("Another folder.")
        library.add([docs, sibling])
        assert library.remove([docs]) == 3
        assert library.info().documents == 1

    def test_an_unknown_path_removes_nothing(self, library, docs):
        library.add([docs])
        with pytest.raises(PathNotFoundError, match=r"not in the library: .*gone.md; nothing was removed"):
            library.remove([docs / "battery.md", docs / "gone.md"])
        assert library.info().documents == 3


def test_memory_holds_no_more_than_a_few_chunks_of_kv(open_library, engine, watched, tmp_path, monkeypatch):
    for number in range(40):
        (tmp_path / f"{number:02}.txt").write_text(paragraphs(4, f"number{number}"))
    alive: list[weakref.ref] = []
    most = 0

    def prefill(chunks, contexts, cancelled):
        nonlocal most
        for kv in engine.prefill(chunks, contexts=contexts):
            alive.append(weakref.ref(kv.layers[0].keys))
            yield kv
            most = max(most, sum(reference() is not None for reference in alive))

    monkeypatch.setattr(watched, "prefill", prefill)
    report = open_library(engine=watched).add(list(tmp_path.glob("*.txt")))
    assert len(alive) == report.chunks > 100
    assert 1 <= most <= 2
