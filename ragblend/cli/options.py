"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ragblend.config import CODECS

LibraryFolder = Annotated[Path, typer.Option("--library", "-l", help="The library's folder.", show_default=False)]
Namespace = Annotated[str, typer.Option(help="Isolation unit, such as a tenant; nothing is shared across them.")]
Model = Annotated[
    str | None,
    typer.Option(
        help="A transformers id, a folder or a .gguf file (default: the library's, at first the embedded one)."
    ),
]
MeasuredModel = Annotated[
    str | None, typer.Option(help="A transformers id, a folder or a .gguf file (default: the embedded one).")
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
EncryptionKeyFile = Annotated[
    Path | None,
    typer.Option(
        envvar="RAGBLEND_ENCRYPTION_KEY_FILE",
        help="The namespace's key (openssl rand -hex 32), kept outside the library; it encrypts what is in there.",
        show_default=False,
    ),
]
Codec = Annotated[
    str | None,
    typer.Option(
        help=f"What KV is kept as: {', '.join(CODECS)} (default: as before, at first raw).", show_default=False
    ),
]
DiskBudget = Annotated[
    str | None,
    typer.Option(help="What the namespace's KV may take: 20GB or none (default: as before).", show_default=False),
]
TotalDiskBudget = Annotated[
    str | None, typer.Option(help="The same for all namespaces together (default: as before).", show_default=False)
]
KeepFree = Annotated[
    str | None,
    typer.Option(help="What has to stay free on the disk: 5GB or none (default: as before).", show_default=False),
]
TimeToLive = Annotated[
    str | None,
    typer.Option(help="Days without use after which KV expires, or none (default: as before).", show_default=False),
]
Remote = Annotated[
    str | None,
    typer.Option(
        envvar="RAGBLEND_REMOTE",
        help="A tier behind the disk, such as s3://bucket/folder, or none (default: as before).",
        show_default=False,
    ),
]
SharedNamespace = Annotated[
    str, typer.Option(help="A namespace to search and read as well, such as a common handbook.", show_default=False)
]
Ratio = Annotated[
    str, typer.Option(help="Share of the reused tokens to recompute, 0 to 1; auto: as much as loading gives time for.")
]
FixedRatio = Annotated[str, typer.Option(help="Share of the reused tokens to recompute, 0 to 1.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
# Read from the command line by main, which decides what becomes of an error.
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and other libraries' warnings.")]
