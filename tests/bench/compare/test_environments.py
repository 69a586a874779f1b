"""Environments of other systems: made once, kept apart from ours, and nothing is left of one that fails."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from ragblend.bench.compare.environments import environments_directory, installed, process_environment
from ragblend.bench.compare.systems import System
from ragblend.errors import PeerError

WHEEL = "other_system-1.0-py3-none-any.whl"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A package without a network: its wheel, written by hand."""
    path = tmp_path / WHEEL
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other_system.py", "NAME = 'other'\n")
        info = "other_system-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: other-system\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_ours_runs_here(own_cache: Path) -> None:
    assert installed(System("ours", "transformers")) == Path(sys.executable)
    assert not environments_directory().exists()


def test_another_system_gets_an_environment_that_sees_nothing_of_ours_but_the_protocol(
    own_cache: Path, wheel: Path, tmp_path: Path
) -> None:
    system = System("other", "other", requirements=(str(wheel),), environment={"OTHER": "1"})
    interpreter = installed(system)
    made = interpreter.stat().st_mtime_ns
    assert installed(system) == interpreter
    assert interpreter.stat().st_mtime_ns == made
    environment = process_environment(system, interpreter, 3, tmp_path)
    assert (environment["OTHER"], environment["OMP_NUM_THREADS"]) == ("1", "3")
    check = (
        "import other_system, importlib.util as util; "
        "from ragblend.bench.compare.peers import protocol; "
        "print(other_system.NAME, [util.find_spec(name) for name in ('torch', 'transformers', 'tests')])"
    )
    printed = subprocess.run(
        [interpreter, "-P", "-c", check], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "other [None, None, None]"


def test_an_environment_that_cannot_be_made_leaves_nothing_behind(own_cache: Path, tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="pip install failed: ERROR: "):
        installed(System("other", "other", requirements=(str(tmp_path / "missing-1.0-py3-none-any.whl"),)))
    assert list(environments_directory().iterdir()) == []


def test_libraries_to_load_first_are_those_that_are_there(tmp_path: Path) -> None:
    interpreter = tmp_path / "env" / "bin" / "python"
    (tmp_path / "env" / "lib").mkdir(parents=True)
    (tmp_path / "env" / "lib" / "fast.so").touch()
    system = System("other", "other", requirements=("x",), preload=("lib/fast.so", "lib/absent.so"))
    environment = process_environment(system, interpreter, 1, tmp_path)
    assert environment["LD_PRELOAD"] == str(tmp_path / "env" / "lib" / "fast.so")
    assert environment["PYTHONPATH"] == str(tmp_path / "importable")
    assert [path.name for path in (tmp_path / "importable").iterdir()] == ["ragblend"]
