"""A library's folder: made, refused, or private and temporary."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ragblend.errors import LibraryError, PathNotFoundError
from ragblend.library import layout
from ragblend.store.files import SYSTEM_FILES


def prepare_folder(folder: Path, *, create: bool) -> None:
    """Make sure that ``folder`` is or may become a library. Raises PathNotFoundError, LibraryError."""
    try:
        if (folder / layout.CATALOGUE).is_file():
            return
        if folder.exists() and not folder.is_dir():
            raise PathNotFoundError(f"{folder} is a file: a library is a folder, give another path")
        if not create:
            raise PathNotFoundError(f"there is no library in {folder}: index documents into it first (ragblend index)")
        if folder.is_dir() and any(folder.iterdir()):
            raise PathNotFoundError(f"{folder} holds files but no library: give a new or an empty folder")
        SYSTEM_FILES.make_private_folder(folder)
    except OSError as error:
        raise LibraryError(f"{folder}: the library cannot be opened ({error.strerror}): check the path") from error


def temporary_folder() -> Path:
    """A new private folder. Raises LibraryError."""
    try:
        return Path(tempfile.mkdtemp(prefix="ragblend-"))
    except OSError as error:
        raise LibraryError(f"no temporary folder can be made ({error.strerror}): give the library a path") from error


def delete_with(owner: object, folder: Path) -> Callable[[], Any]:
    """Delete ``folder`` when ``owner`` is freed, the program ends, or the returned function is called."""
    return weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
