"""Environments for other systems: made with pip in the user cache, each once, and deleted without harm."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from ragblend.bench.compare.systems import System
from ragblend.config import cache_directory
from ragblend.errors import PeerError

_READY = "ready"
_SOURCES = Path(__file__).parents[3]  # the folder that holds the package ragblend


def environments_directory() -> Path:
    return cache_directory() / "bench" / "environments"


def installed(system: System) -> Path:
    """The interpreter of the system's environment, which is made now if it is not there.

    Raises PeerError where pip does not succeed.
    """
    if not system.requirements:
        return Path(sys.executable)
    recipe = " ".join((sys.version, *system.requirements, "without", *system.unwanted))
    digest = hashlib.sha256(recipe.encode()).hexdigest()[:16]
    folder = environments_directory() / f"{system.module}-{digest}"
    if not (folder / _READY).is_file():
        shutil.rmtree(folder, ignore_errors=True)  # an interrupted one
        _make(folder, system)
    return _interpreter(folder)


def process_environment(system: System, interpreter: Path, threads: int, folder: Path) -> dict[str, str]:
    """Variables for the system's process.

    folder: where another environment finds this package, and nothing else of ours.
    """
    preload = [library for name in system.preload if (library := interpreter.parents[1] / name).is_file()]
    importable = folder / "importable"
    if not importable.exists():
        importable.mkdir()
        (importable / "ragblend").symlink_to(_SOURCES / "ragblend", target_is_directory=True)
    own = os.pathsep.join(path for path in sys.path if path)
    return {
        **os.environ,
        **system.environment,
        "PYTHONPATH": str(importable) if system.requirements else own,
        **({"LD_PRELOAD": os.pathsep.join(map(str, preload))} if preload else {}),
        "OMP_NUM_THREADS": str(threads),
        "TQDM_DISABLE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }


def _make(folder: Path, system: System) -> None:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        venv.create(folder, with_pip=True)
        _pip(folder, ["install", "--only-binary=:all:", *system.requirements])
        if system.unwanted:
            _pip(folder, ["uninstall", "--yes", *system.unwanted])
        (folder / _READY).touch()
    except OSError as error:
        raise PeerError(f"{folder}: {error.strerror or error}") from error
    except subprocess.CalledProcessError as error:
        raise PeerError(f"no environment for it could be made: {error}") from error
    finally:
        if not (folder / _READY).is_file():
            shutil.rmtree(folder, ignore_errors=True)


def _pip(folder: Path, arguments: Sequence[str]) -> None:
    command = [str(_interpreter(folder)), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    with tempfile.TemporaryFile("w+") as messages:
        finished = subprocess.run(command, stdout=messages, stderr=messages, check=False)
        messages.seek(0)
        lines = [line.strip() for line in messages if line.strip()]
    if finished.returncode != 0:
        complaints = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["it says nothing"]
        raise PeerError(f"pip {arguments[0]} failed: {complaints[0]}")


def _interpreter(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
