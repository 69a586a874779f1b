"""What the benchmarks' commands share: options, a progress bar, the line about the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ragblend.cli.output import stderr, stdout
from ragblend.config import BlendSettings
from ragblend.errors import ConfigError

if TYPE_CHECKING:
    from ragblend.bench.machine import Machine

RATIO = str(BlendSettings().ratio)
Policies = Annotated[str, typer.Option(help="Policies, separated by commas; one may have its own ratio: query@0.1.")]
Data = Annotated[Path | None, typer.Option(help="JSON lines with id, question, answers and passages (title, text).")]


def whole_number(word: str, what: str = "contexts") -> int:
    try:
        return int(word)
    except ValueError as error:
        raise ConfigError(f"{what} must be whole numbers separated by commas, got {word!r}") from error


def whole_numbers(words: str, what: str) -> list[int]:
    return [whole_number(word, what) for word in words.split(",") if word.strip()]


def print_machine(machine: Machine) -> None:
    stdout().print(
        f"{machine.model} in {machine.dtype} on {machine.device}, {machine.threads} threads of {machine.cpu}; "
        f"torch {machine.torch}, transformers {machine.transformers}"
        f"{f', triton {machine.triton}' if machine.triton else ''}",
        style="dim",
        soft_wrap=True,
        markup=False,
    )


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr; call what is given with the number done and the total."""
    console = stderr()
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(what, total=None)
    with bar:
        yield lambda done, total: bar.update(task, completed=done, total=total)
