"""``ragblend index``: the report, its JSON, and the exit status."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run

FIELDS = {
    "documents",
    "chunks",
    "tokens",
    "kv_bytes",
    "indexed",
    "unchanged",
    "replaced",
    "removed",
    "skipped",
    "seconds",
}


def counts(report: dict[str, object]) -> dict[str, object]:
    return {name: report[name] for name in ("documents", "indexed", "unchanged", "replaced", "removed")}


def test_json_follows_what_happens_to_the_documents(run: Run, docs: Path, model: Path, tmp_path: Path) -> None:
    def index() -> dict[str, object]:
        result = run("index", docs, "--library", tmp_path / "docs.rag", "--model", model, "--json")
        assert (result.status, result.err) == (0, "")
        return result.json

    first = index()
    assert first.keys() == FIELDS
    assert counts(first) == {"documents": 2, "indexed": 2, "unchanged": 0, "replaced": 0, "removed": 0}
    assert first["skipped"] == []

    (docs / "battery.md").unlink()
    (docs / "warranty.md").write_text("The warranty lasts three years.")
    assert counts(index()) == {"documents": 1, "indexed": 0, "unchanged": 0, "replaced": 1, "removed": 1}
    assert counts(index()) == {"documents": 1, "indexed": 0, "unchanged": 1, "replaced": 0, "removed": 0}


def test_skipped_documents_are_named_and_give_status_1(run: Run, docs: Path, model: Path, tmp_path: Path) -> None:
    (docs / "broken.pdf").write_bytes(b"%PDF-1.4 or not")
    arguments = ("index", docs, "--library", tmp_path / "docs.rag", "--model", model)
    as_text = run(*arguments)
    assert as_text.status == 1
    assert "broken.pdf" in as_text.out
    assert as_text.out.splitlines()[-1].startswith("2 documents · ")

    as_object = run(*arguments, "--json")
    assert as_object.status == 1
    [skipped] = as_object.json["skipped"]
    assert skipped.keys() == {"path", "reason"}
    assert skipped["path"] == str(docs / "broken.pdf")


def test_a_checkout_with_the_library_in_it(run: Run, docs: Path, model: Path) -> None:
    """Neither version control's files nor the library itself are documents that could not be read."""
    (docs / ".git").mkdir()
    (docs / ".git" / "index").write_bytes(b"\0")
    for expected in ("indexed", "unchanged"):
        done = run("index", docs, "--library", docs / "docs.rag", "--model", model, "--json")
        assert (done.status, done.json[expected], done.json["skipped"]) == (0, 2, [])


def test_library_remembers_its_model(run: Run, indexed: Path, library: Path) -> None:
    """Neither indexing again nor asking needs --model."""
    assert run("index", indexed / "docs", "--library", library, "--json").json["unchanged"] == 3


def test_another_model_is_refused(run: Run, docs: Path, library: Path, other_model: Path) -> None:
    result = run("index", docs, "--library", library, "--model", other_model)
    assert result.status == 1
    assert "was indexed with tiny, not with other" in result.err


def test_empty_folder_is_a_usage_error(run: Run, tmp_path: Path, model: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = run("index", tmp_path / "empty", "--library", tmp_path / "new.rag", "--model", model)
    assert result.status == 2
    assert "no documents found" in result.err


def test_folder_of_something_else_is_not_made_a_library(run: Run, docs: Path, model: Path) -> None:
    result = run("index", docs, "--library", docs, "--model", model)
    assert result.status == 2
    assert {path.name for path in docs.iterdir()} == {"battery.md", "warranty.md"}


def test_an_existing_empty_folder_becomes_a_library(run: Run, docs: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = run("index", docs, "--library", tmp_path / "empty", "--model", model, "--json")
    assert (result.status, result.json["indexed"]) == (0, 2)


def test_a_library_whose_making_did_not_finish_is_made(run: Run, docs: Path, model: Path, tmp_path: Path) -> None:
    """As after a full disk or a kill between the catalogue's file and its tables."""
    unfinished = tmp_path / "docs.rag"
    unfinished.mkdir()
    (unfinished / "catalogue.sqlite").touch()
    refused = run("info", "--library", unfinished)
    assert (refused.status, "index documents into it" in refused.err) == (1, True)
    budget = ("--disk-budget", "1GB")
    assert run("index", docs, "--library", unfinished, "--model", model, *budget).status == 0
    assert run("info", "--library", unfinished, "--json").json["documents"] == 2
