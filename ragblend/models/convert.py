"""GGUF files as folders that transformers loads at once: converted the first time, kept in the cache.

A conversion is keyed by the file's content. It is written into a temporary folder and renamed when
it is complete, so an interrupted one leaves nothing half-made and two processes may convert the
same file at once.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ragblend.config import cache_directory
from ragblend.errors import ModelError, PathNotFoundError

CONVERSION = 1  # counts up when the same GGUF would be converted differently
ABANDONED_AFTER_S = 3600.0
_PARTIAL = ".partial-"

logger = logging.getLogger(__name__)


def models_directory() -> Path:
    return cache_directory() / "models"


def converted_gguf(gguf: Path) -> Path:
    """The folder with the safetensors form of ``gguf``: from the cache, or converted now.

    Raises PathNotFoundError when there is no such file, ModelError when it cannot be converted.
    """
    if not gguf.is_file():
        raise PathNotFoundError(f"{gguf}: no such file")
    with gguf.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{gguf} is not a GGUF file: give a .gguf file, a model folder or a transformers id")
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    parent = models_directory()
    folder = parent / f"{gguf.stem}-{digest[:32]}-v{CONVERSION}"
    remove_abandoned(parent)
    if not folder.is_dir():
        _convert(gguf, folder)
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    # A warning, because that is what reaches stderr where no logging is set up: someone who calls
    # from Python and waits half a minute should know why.
    logger.warning("preparing %s, once: about 20 seconds for each 100 MB", gguf.stem)
    with partial_folder(folder.parent) as partial:
        _run_dequantise(gguf, partial)
        publish(partial, folder)


@contextmanager
def partial_folder(parent: Path) -> Iterator[Path]:
    """A temporary folder in ``parent``, removed at the end unless it was renamed.

    Raises ModelError where the disk does not let it or what happens to it succeed.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=parent))
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        way = "free some space" if error.errno == errno.ENOSPC else "make it a folder that can be written"
        raise ModelError(
            f"{parent}: {error.strerror or error}; {way} or set RAGBLEND_CACHE_DIR to another folder"
        ) from error


def _run_dequantise(gguf: Path, folder: Path) -> None:
    quiet = {"TQDM_DISABLE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    importable = {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "ragblend.models.dequantise", str(gguf.resolve()), str(folder)]
    finished = subprocess.run(command, env=os.environ | quiet | importable, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        last_line = finished.stderr.strip().rpartition("\n")[2] or f"exit status {finished.returncode}"
        raise ModelError(
            f"{gguf}: could not be converted ({last_line}): if the file is cut short, download it again; "
            "of a kind that transformers cannot read, give its safetensors folder instead"
        )


def publish(partial: Path, folder: Path) -> None:
    """Make ``partial`` durable and rename it to ``folder``; whoever is first wins, the others keep theirs."""
    for path in (*partial.iterdir(), partial):
        sync(path)
    try:
        partial.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    sync(folder.parent)


def sync(path: Path) -> None:
    """Flush a file or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_abandoned(parent: Path) -> None:
    """Remove what killed processes left: partial folders that nobody has written to for an hour."""
    for partial in parent.glob(f"{_PARTIAL}*"):
        try:
            newest = max(path.stat().st_mtime for path in (partial, *partial.iterdir()))
        except OSError:  # its owner has just renamed or removed it
            continue
        if time.time() - newest > ABANDONED_AFTER_S:
            shutil.rmtree(partial, ignore_errors=True)
