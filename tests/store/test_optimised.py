"""Nothing that protects a store is an ``assert``: its tests pass as well under ``python -O``, which drops them.

pytest rewrites the tests' own asserts, so they still count. ``make test-optimised`` runs the whole suite so.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = ("test_key.py", "test_reader.py", "test_hostile.py")
# pytest warns that asserts outside of tests are dropped, which is what this is about.
OPTIONS = ("-W", "ignore::pytest.PytestConfigWarning", "-p", "no:cacheprovider")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-O", "-m", "pytest", *OPTIONS, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_stores_tests_pass_without_asserts_in_the_package():
    finished = run(*(f"tests/store/{name}" for name in FILES))
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]


def test_a_failing_test_would_be_noticed(tmp_path):
    (tmp_path / "test_wrong.py").write_text("def test_wrong():\n    assert 1 == 2\n")
    finished = run(str(tmp_path / "test_wrong.py"), "--rootdir", str(tmp_path), "-c", "/dev/null")
    assert finished.returncode == 1
    assert "1 failed" in finished.stdout
