"""What ``library``, ``engine`` and ``model`` mean wherever this package takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast

from ragblend import Engine, Library, ReuseSettings
from ragblend.errors import ConfigError

Learn = Literal["off", "passages", "paragraphs"]


def open_library(
    library: Library | str | Path | None,
    *,
    engine: Engine | None = None,
    model: str | Path | None = None,
    learn: Learn | None = None,
) -> tuple[Library, bool]:
    """The library to work on, and whether it was opened here and so has to be closed by the caller.

    library: an open one, used as it is; a folder; None for a private one that goes away when closed.
    engine: a loaded model to share; None loads ``model`` (None: the embedded default).

    Raises ConfigError where an open library is given together with what it already decides.
    """
    if not isinstance(library, str | Path | None):
        if engine is not None or model is not None or learn is not None:
            raise ConfigError("an open library has its own engine and settings: give engine, model and learn to it")
        if library.engine is None:
            raise ConfigError("the library was opened without a model: open it with engine=Engine(...)")
        return library, False
    if engine is not None and model is not None:
        raise ConfigError("give either engine or model: an engine already has its model")
    reuse = ReuseSettings(learn=learn or "paragraphs")
    return Library.open(library, engine=engine or Engine(model), reuse=reuse), True


def engine_of(library: Library) -> Engine:
    """The engine of a library that ``open_library`` returned."""
    return cast(Engine, library.engine)
