"""The command tree, and what becomes of an error: one line, the right exit status."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from ragblend import __version__
from ragblend.cli import ask, bench, cache, doctor, fetch, index, maintain
from ragblend.cli.output import fail, stdout
from ragblend.cli.quiet import quiet
from ragblend.errors import RagblendError

INTERRUPTED = 130
# Commands that go on where they were interrupted.
_RESUMED = ("index", "repair", "fetch")


def _print_version(wanted: bool) -> None:
    if wanted:
        stdout().print(f"ragblend {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Answer questions from documents whose KV cache was computed once, when they were indexed."""


app = typer.Typer(
    name="ragblend",
    callback=_options,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("index")(index.index)
app.command("ask")(ask.ask)
app.command("info")(maintain.info)
app.command("verify")(maintain.verify)
app.command("repair")(maintain.repair)
app.command("gc")(maintain.gc)
app.command("remove")(maintain.remove)
app.command("doctor")(doctor.doctor)
app.add_typer(cache.app, name="cache")
app.add_typer(bench.app, name="bench")
app.command("fetch")(fetch.fetch)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0, 1 (failure), 2 (usage) or 130 (interrupted, by Ctrl-C or SIGTERM)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = words[: words.index("--")] if "--" in words else words
    with quiet(debug="--debug" in options), _terminated_as_interrupted():
        sys.exit(run(words or ["--help"], json="--json" in options, debug="--debug" in options))


def run(words: list[str], *, json: bool, debug: bool) -> int:
    """Run one command and return its exit status; with ``debug``, an error is raised instead of reported."""
    try:
        status = int(app(args=words, prog_name="ragblend", standalone_mode=False) or 0)
    except typer.TyperException as error:
        return fail(f"{error.format_message().rstrip('.')}{_help_of(error)}", "UsageError", error.exit_code, json=json)
    except typer.Abort:
        status = INTERRUPTED
    except RagblendError as error:
        if debug:
            raise
        return fail(str(error), type(error).__name__, error.exit_status, json=json)
    except Exception as error:
        if debug:
            raise
        return fail(_unexpected(error), type(error).__name__, RagblendError.exit_status, json=json)
    if status == INTERRUPTED:
        kept = ": what is finished is kept, run the same command again to go on" if words[0] in _RESUMED else ""
        return fail(f"interrupted{kept}", "KeyboardInterrupt", INTERRUPTED, json=json)
    return status


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM, as ``timeout`` and service managers send it, would leave temporary folders behind.

    Whoever has said already what it does, is left to it.
    """
    if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _unexpected(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename:
        return f"the output cannot be written: {error.strerror}"
    return f"unexpected {type(error).__name__}: {error} (--debug shows where)"


def _help_of(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    return f": see `{context.command_path} --help`" if context is not None else ""
