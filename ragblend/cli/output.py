"""What the commands print: results on stdout, notes and errors on stderr, JSON that is valid JSON."""

from __future__ import annotations

import json as jsonlib
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def stdout() -> Console:
    return Console(file=sys.stdout, highlight=False)


def stderr() -> Console:
    return Console(file=sys.stderr, highlight=False)


def emit(result: object) -> None:
    """Print a mapping or a dataclass as a command's one JSON object; NaN and infinity, which JSON lacks, as null."""
    sys.stdout.write(jsonlib.dumps(_plain(result), ensure_ascii=False, indent=2) + "\n")
    sys.stdout.flush()


def fail(message: str, kind: str, status: int, *, json: bool) -> int:
    """Report an error in one line on stderr (and as JSON on stdout) and return ``status``."""
    line = " ".join(printable(message).split())
    stderr().print(Text.assemble(("error: ", "bold red"), line), soft_wrap=True)
    if json:
        emit({"error": line, "kind": kind})
    return status


def printable(text: str) -> str:
    """``text`` without the control characters by which a document could drive the reader's terminal."""
    return "".join(character for character in text if character in "\n\t" or character.isprintable())


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 chunk``, ``1,024 chunks``."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def excerpt(text: str, width: int) -> str:
    """The beginning of ``text`` in one line of at most ``width`` characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= width else f"{line[: width - 1].rstrip()}…"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, cut_last: bool = False) -> Table:
    """A plain table; the cells are text, not markup. With ``cut_last`` the last column is cut to the room left."""
    made = Table(box=None, pad_edge=False, header_style="dim", expand=cut_last)
    for column in columns[:-1]:
        made.add_column(column, overflow="fold")
    made.add_column(columns[-1], overflow="ellipsis" if cut_last else "fold", no_wrap=cut_last, ratio=int(cut_last))
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    return made


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
