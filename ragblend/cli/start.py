"""From a command's options to an open library; what can be refused is refused before a model is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ragblend.cli.fetch import offer_to_fetch
from ragblend.errors import PathNotFoundError

if TYPE_CHECKING:
    from ragblend.blend.policies import Policy
    from ragblend.config import ChunkSettings, StoreSettings
    from ragblend.engine import Engine
    from ragblend.library.library import Library


def require_documents(paths: Sequence[Path], library: Path) -> None:
    """Raise PathNotFoundError unless every path is there, and for a new library something is in them."""
    if missing := [str(path) for path in paths if not os.path.lexists(path)]:
        raise PathNotFoundError(f"no such file or folder: {', '.join(missing)}")
    from ragblend.library import layout
    from ragblend.library.walk import find_files
    from ragblend.store.catalogue import is_made

    if not is_made(library / layout.CATALOGUE):
        find_files(paths).require_any()


def find_policy(name: str) -> Policy:
    """The policy called ``name``. Raises ConfigError if there is none."""
    from ragblend.blend.policies import policy_named

    return policy_named(name)


def start_engine(model: str | None, device: str, dtype: str, *, json: bool) -> Engine:
    """Load ``model``; None or empty is the embedded one, after an offer to download it where it is missing."""
    if not model:
        offer_to_fetch(json=json)
    from ragblend.engine import Engine

    return Engine(model or None, device=device, dtype=dtype)


@contextmanager
def open_library(
    folder: Path,
    namespace: str,
    model: str | None,
    device: str,
    dtype: str,
    *,
    json: bool,
    create: bool = False,
    read_only: bool = False,
    chunk: ChunkSettings | None = None,
    store: StoreSettings | None = None,
) -> Iterator[Library]:
    """The library in ``folder`` with its engine: on ``model``, else on the one that it was indexed with."""
    from ragblend.library import layout
    from ragblend.library.library import Library
    from ragblend.store.catalogue import is_made

    recorded = "" if create and not is_made(folder / layout.CATALOGUE) else recorded_model(folder, store)
    engine = start_engine(model or recorded, device, dtype, json=json)
    with Library.open(
        folder, engine=engine, namespace=namespace, create=create, read_only=read_only, chunk=chunk, store=store
    ) as opened:
        yield opened


def recorded_model(folder: Path, store: StoreSettings | None = None) -> str:
    """What the library's model is loaded by; empty for the embedded one.

    Raises PathNotFoundError, StoreError, LibraryMismatchError (``store`` has another codec).
    """
    from ragblend.config import StoreSettings
    from ragblend.library.library import Library

    settings = StoreSettings(codec=store.codec if store else None)
    with Library.open(folder, create=False, read_only=True, store=settings) as opened:
        return opened.info().model_reference
