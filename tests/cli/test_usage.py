"""What is asked wrongly ends with status 2 and one line, before any model is loaded."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ragblend
from tests.cli.conftest import Run

pytestmark = pytest.mark.usefixtures("no_model")

MISTAKES = {
    "no chunks": ("ask q --library {library} -k 0", "-k must be at least 1"),
    "ratio above 1": ("ask q --library {library} --ratio 1.2", "ratio must be auto or between 0 and 1, got 1.2"),
    "ratio below 0": ("ask q --library {library} --ratio -0.1", "ratio must be auto or between 0 and 1"),
    "unknown policy": ("ask q --library {library} --policy best", "unknown policy 'best': choose one of full, prefix"),
    "unknown overflow": ("ask q --library {library} --overflow cut", "overflow must be 'refuse' or 'drop'"),
    "no answer": ("ask q --library {library} --max-tokens 0", "max_tokens must be at least 1"),
    "empty question": ("ask   --library {library}", "Missing argument 'question'"),
    "blank question": ("ask \t --library {library}", "the question is empty"),
    "no library": ("ask q --library {missing}", "there is no library in"),
    "no library to look at": ("info --library {missing}", "there is no library in"),
    "no library option": ("ask q", "Missing option '--library'"),
    "missing document": ("index {missing} --library {library}", "no such file or folder: "),
    "tiny chunks": ("index {library} --library {library} --chunk-tokens 2", "chunk tokens must be between 16"),
    "unknown command": ("answer q", "No such command 'answer'"),
    "unknown option": ("ask q --library {library} --quick", "No such option: --quick"),
    "not a number": ("ask q --library {library} -k many", "valid integer"),
    "a budget that is none": ("index {library} --library {library} --disk-budget much", "write it as 500MB or 20GiB"),
    "a budget of nothing": ("index {library} --library {library} --disk-budget 0", "disk budget must be positive"),
    "days that are none": ("index {library} --library {library} --ttl-days long", "is no number of days"),
    "a key that is not there": ("ask q --library {library} --encryption-key-file {missing}", "key cannot be read"),
    "bench of nothing": ("bench", ""),
}


def words(command: str, library: Path) -> list[str]:
    return [word.format(library=library, missing=library / "missing") for word in command.split(" ") if word]


@pytest.mark.parametrize(("command", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_one_line(run: Run, indexed: Path, command: str, message: str) -> None:
    result = run(*words(command, indexed / "docs.rag"))
    assert result.status == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert message in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(("command", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_is_one_json_object(run: Run, indexed: Path, command: str, message: str) -> None:
    result = run(*words(command, indexed / "docs.rag"), "--json")
    assert result.status == 2
    assert message in result.json["error"]
    assert result.json["kind"] in {"UsageError", "ConfigError", "PathNotFoundError"}


def test_debug_shows_where(indexed: Path) -> None:
    from ragblend.cli import main
    from ragblend.errors import ConfigError

    with pytest.raises(ConfigError, match="-k must be at least 1"):
        main(["ask", "q", "--library", str(indexed / "docs.rag"), "-k", "0", "--debug"])


@pytest.mark.parametrize("command", ["", "index", "ask", "info", "verify", "repair", "gc", "remove", "doctor", "fetch"])
def test_every_command_has_help(run: Run, command: str) -> None:
    result = run(*command.split(), "--help")
    assert result.status == 0
    assert "Usage: ragblend" in result.out
    assert result.err == ""


def test_version(run: Run) -> None:
    assert run("--version").out == f"ragblend {ragblend.__version__}\n"


def test_nothing_is_help(run: Run) -> None:
    assert run().out == run("--help").out


def test_failing_load_is_status_1(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.undo()  # here a model may be loaded, and cannot
    result = run("doctor", tmp_path)
    assert result.status == 1
    assert "cannot be loaded" in result.err
    assert result.err.count("\n") == 1


def ctrl_c(*_: object) -> None:
    raise KeyboardInterrupt


def terminated(*_: object) -> None:
    signal.raise_signal(signal.SIGTERM)


@pytest.fixture
def unhandled() -> Iterator[None]:
    """SIGTERM as in a process that nobody has told what to do; whoever started the tests may have."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    assert signal.signal(signal.SIGTERM, before) == signal.SIG_DFL


@pytest.mark.usefixtures("unhandled")
@pytest.mark.parametrize("interruption", [ctrl_c, terminated])
def test_interrupt_is_status_130(
    interruption: Callable[..., None], run: Run, indexed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ragblend.engine.load_model", interruption)
    result = run("ask", "q", "--library", indexed / "docs.rag")
    assert (result.status, result.err) == (130, "error: interrupted\n")


def test_a_termination_that_somebody_handles_is_left_to_them(
    run: Run, indexed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    try:
        monkeypatch.setattr("ragblend.engine.load_model", terminated)
        assert run("ask", "q", "--library", indexed / "docs.rag").status != 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert told == [signal.SIGTERM]


def test_unexpected_error_is_one_line(run: Run, indexed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> None:
        raise KeyError("layers\n[bold]17")

    monkeypatch.setattr("ragblend.engine.load_model", break_down)
    result = run("ask", "q", "--library", indexed / "docs.rag", "--json")
    assert result.status == 1
    assert result.err == "error: unexpected KeyError: 'layers\\n[bold]17' (--debug shows where)\n"
    assert result.json["kind"] == "KeyError"
