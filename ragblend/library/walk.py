"""Finding the documents below the given paths."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ragblend.errors import PathNotFoundError
from ragblend.library import layout
from ragblend.library.report import Skipped

_BAD_NAME = "its name is not valid UTF-8"


@dataclass(frozen=True, slots=True)
class Found:
    """Absolute paths: the ``roots`` that were asked for, the ``files`` below them, and what was left out."""

    roots: tuple[Path, ...]
    files: tuple[Path, ...]
    skipped: tuple[Skipped, ...]

    def require_any(self) -> None:
        """Raise PathNotFoundError if nothing was found."""
        if not self.files and not self.skipped:
            roots = ", ".join(map(str, self.roots)) or "an empty list"
            raise PathNotFoundError(f"no documents found in {roots}: give a folder with text in it")


def absolute(path: str | Path) -> Path:
    """The name under which a document is kept: absolute, links of the given path resolved."""
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise PathNotFoundError(f"{path!r} is no usable path ({error}): give a file or a folder") from error


def find_files(paths: Sequence[str | Path]) -> Found:
    """Files below ``paths`` in a stable order, each once.

    Inside a folder, hidden names and libraries are no documents and pass unmentioned. Symbolic links are
    left out with a reason: what a link points to is either found under its own name or outside the
    folder. A path that is given itself is taken, hidden or a link or not. Raises PathNotFoundError
    before anything is read.
    """
    given = {absolute(path): Path(path) for path in paths}
    roots = tuple(given)
    if missing := [printable(path) for root, path in given.items() if not os.path.lexists(root)]:
        raise PathNotFoundError(f"no such file or folder: {', '.join(missing)}; nothing was indexed")
    files: dict[Path, None] = {}
    skipped: dict[Path, Skipped] = {}
    for root in roots:
        if root.is_dir():
            _walk(root, files, skipped)
        elif not is_text(root):
            skipped[root] = Skipped(printable(root), _BAD_NAME)
        else:
            files[root] = None
    return Found(roots, tuple(files), tuple(skipped.values()))


def _walk(root: Path, files: dict[Path, None], skipped: dict[Path, Skipped]) -> None:
    def skip(path: Path, reason: str) -> None:
        skipped[path] = Skipped(printable(path), reason)

    def unreadable(error: OSError) -> None:
        skip(Path(error.filename), (error.strerror or str(error)).lower())

    for folder, subfolders, names in os.walk(root, onerror=unreadable):
        if layout.CATALOGUE in names:
            if Path(folder) == root:
                skip(root, "a ragblend library")
            subfolders.clear()
            continue
        kept = []
        for name in sorted((*subfolders, *names)):
            if name.startswith("."):
                continue
            path = Path(folder, name)
            if reason := _reason_to_skip(root, path):
                skip(path, reason)
            else:
                kept.append(name)
        subfolders[:] = [name for name in kept if name in set(subfolders)]
        files.update((Path(folder, name), None) for name in kept if name not in set(subfolders))


def _reason_to_skip(root: Path, path: Path) -> str | None:
    if os.path.islink(path):  # noqa: PTH114 (Path.is_symlink raises where the folder may only be listed)
        return _about_link(root, path)
    if not is_text(path):
        return _BAD_NAME
    return None


def _about_link(root: Path, link: Path) -> str:
    try:
        target = link.resolve(strict=True)
    except FileNotFoundError:
        return "a link to nothing"
    except PermissionError:
        return "a link to something that may not be read"
    except (OSError, RuntimeError):
        return "a link that loops"
    if link.is_relative_to(target):
        return "a link that loops"
    if not target.is_relative_to(root):
        return "a link to outside the folder"
    return f"a link to {target.relative_to(root)}, which is looked at under its own name"


def printable(path: Path) -> str:
    """``path`` as text that can be printed and stored, whatever bytes its name has."""
    return os.fsencode(path).decode("utf-8", "replace")


def is_text(path: Path) -> bool:
    """Whether its name is valid UTF-8, so that it can be printed and stored as it is."""
    return printable(path) == str(path)
