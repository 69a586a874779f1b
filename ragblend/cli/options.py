"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LibraryFolder = Annotated[Path, typer.Option("--library", "-l", help="The library's folder.", show_default=False)]
Namespace = Annotated[str, typer.Option(help="Isolation unit, such as a tenant; nothing is shared across them.")]
Model = Annotated[
    str | None,
    typer.Option(
        help="A transformers id, a folder or a .gguf file (default: the library's, at first the embedded one)."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
# Read from the command line by main, which decides what becomes of an error.
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and other libraries' warnings.")]
