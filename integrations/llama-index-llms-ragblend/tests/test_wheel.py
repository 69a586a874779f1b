"""The wheel installs into an empty environment, and everything that it offers can be imported there."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1]
RAGBLEND = PACKAGE.parents[1]
OFFERED = """
from llama_index.embeddings.ragblend import RagBlendEmbedding
from llama_index.llms.ragblend import PrecomputeKV, RagBlend
from llama_index.response_synthesizers.ragblend import RagBlendSynthesizer
from llama_index.retrievers.ragblend import RagBlendRetriever
from llama_index.vector_stores.ragblend import RagBlendVectorStore
from llama_index.core import VectorStoreIndex
import llama_index.llms.ragblend, importlib.metadata
print(llama_index.llms.ragblend.__file__)
print(importlib.metadata.version("llama-index-llms-ragblend"))
"""


def run(*command: object, **options) -> str:
    finished = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory) -> Path:
    """A folder with the wheels of this package and of ragblend."""
    folder = tmp_path_factory.mktemp("wheels")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder)
    run(sys.executable, "-m", "pip", "wheel", *options, PACKAGE, RAGBLEND)
    return folder


def test_the_wheel_holds_the_packages_and_nothing_else(wheels):
    [wheel] = wheels.glob("llama_index_llms_ragblend-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    folders = {name.rpartition("/")[0] for name in names}
    kinds = {"llms", "embeddings", "vector_stores", "retrievers", "response_synthesizers"}
    packages = {f"llama_index/{kind}/ragblend" for kind in kinds}
    metadata = "llama_index_llms_ragblend-0.1.0.dist-info"
    assert folders == packages | {metadata, f"{metadata}/licenses"}
    assert all(f"{package}/py.typed" in names and f"{package}/__init__.py" in names for package in packages)


def test_it_imports_where_nothing_of_this_checkout_is(wheels, tmp_path):
    """The heavy dependencies come from this environment, both packages from their wheels only."""
    venv.create(tmp_path / "empty", with_pip=False)
    python = tmp_path / "empty" / "bin" / "python"
    [site] = (tmp_path / "empty" / "lib").glob("python*/site-packages")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "-q", *wheels.iterdir())
    (site / "dependencies.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")
    where, version = run(python, "-W", "error::ImportWarning", "-c", OFFERED, cwd=tmp_path, env={}).split()
    assert Path(where).is_relative_to(site)
    assert version == "0.1.0"
