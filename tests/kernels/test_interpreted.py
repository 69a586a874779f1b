"""Runs the tests of ``interpreted/``, a file a process: the interpreter is for a process as a whole."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "interpreted"
ROOT = FOLDER.parent.parent.parent
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed: pip install triton")


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """All files at once, in the long version if this one is."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    options = ["-p", "no:cacheprovider", "-m", request.config.option.markexpr]
    started = {
        file: subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, str(FOLDER / file)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for file in FILES
    }
    yield started
    for process in started.values():
        if process.poll() is None:
            process.kill()
            process.communicate()


def finish(process: subprocess.Popen[str], none_selected: bool = False) -> None:
    out, _ = process.communicate()
    allowed = {0, pytest.ExitCode.NO_TESTS_COLLECTED} if none_selected else {0}
    assert process.returncode in allowed, out[-10_000:]


@pytest.mark.parametrize("file", FILES)
def test_kernels_in_the_interpreter(running, file):
    finish(running[file])


@pytest.mark.long
@pytest.mark.parametrize("file", FILES)
def test_more_of_them(running, file):
    finish(running[file], none_selected=True)
