"""The package as it is published: built as a wheel, installed into an empty environment, imported there."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

import ragblend

PACKAGE = Path(__file__).parents[2]
NAMES = "ChatRagBlend, PrecomputeKV, RagBlendEmbeddings, RagBlendLLM, RagBlendRetriever, RagBlendVectorStore"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q"]
    subprocess.run([*build, "-w", folder, PACKAGE], check=True, capture_output=True, text=True)
    (built,) = folder.glob("langchain_ragblend-*.whl")
    return built


def test_a_wheel_has_the_package_its_types_and_its_licence_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"langchain_ragblend/__init__.py", "langchain_ragblend/py.typed"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"langchain_ragblend"}


def test_a_wheel_is_imported_from_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "-q", wheel]
    subprocess.run(install, check=True, capture_output=True, text=True)
    # The dependencies, which are large, are those of this environment. This package is not among them.
    site = Path(
        subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        ).strip()
    )
    here = [sysconfig.get_path("purelib"), str(Path(ragblend.__file__).parents[1])]
    (site / "dependencies.pth").write_text("\n".join(here) + "\n")
    check = f"import langchain_ragblend; from langchain_ragblend import {NAMES}; print(langchain_ragblend.__file__)"
    command = [python, "-W", "error", "-c", check]
    imported = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path, env={})
    assert Path(imported.stdout.strip()).is_relative_to(tmp_path)
