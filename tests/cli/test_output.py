"""What is printed can neither break JSON nor drive the terminal."""

from __future__ import annotations

import io
import json
import logging
import os
import warnings

import pytest
from rich.console import Console

from ragblend.cli.output import counted, emit, excerpt, fail, printable, table
from ragblend.cli.quiet import quiet
from ragblend.results import Source


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"kl": float("nan"), "rows": ({"speedup": float("inf")},), "source": Source("a.md", 0, 0.5, "é")})
    assert json.loads(capsys.readouterr().out) == {
        "kl": None,
        "rows": [{"speedup": None}],
        "source": {"document": "a.md", "chunk": 0, "score": 0.5, "text": "é", "title": "", "heading": ""},
    }


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b[2Jb\x07\tc\nd\x9be") == "a[2Jb\tc\nde"


def test_excerpt_is_one_short_line() -> None:
    assert excerpt("one\n\n two  three", 20) == "one two three"
    assert excerpt("one two three", 8) == "one two…"


def test_error_is_text_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    assert fail("[red]a\nb[/red] \x1b]0;", "StoreError", 1, json=False) == 1
    assert capsys.readouterr().err == "error: [red]a b[/red] ]0;\n"


def test_cells_are_text_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    from rich import print as rich_print

    rich_print(table(["path"], [["[bold]x"]]))
    assert "[bold]x" in capsys.readouterr().out


def test_long_last_column_is_cut_and_the_others_stay() -> None:
    console = Console(file=io.StringIO(), width=60)
    console.print(table(["document", "score", "text"], [["docs/warranty.md", "0.71", "word " * 40]], cut_last=True))
    [_, row] = console.file.getvalue().splitlines()
    assert row.startswith("docs/warranty.md  0.71   word word")
    assert row.rstrip().endswith("…")


def test_quiet_hides_others_and_restores_everything(capsys: pytest.CaptureFixture[str]) -> None:
    before = dict(os.environ)
    with quiet(debug=False):
        warnings.warn("of another library", FutureWarning, stacklevel=1)
        logging.getLogger("ragblend.models").warning("preparing [x], once")
    assert capsys.readouterr().err == "preparing [x], once\n"
    assert dict(os.environ) == before
    with pytest.raises(FutureWarning):
        warnings.warn("of another library", FutureWarning, stacklevel=1)


@pytest.mark.parametrize(("number", "text"), [(0, "0 entries"), (1, "1 entry"), (1024, "1,024 entries")])
def test_counted(number: int, text: str) -> None:
    assert counted(number, "entry", "entries") == text
    assert counted(2, "chunk") == "2 chunks"
