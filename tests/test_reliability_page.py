"""Each command of docs/reliability.md runs tests that are there."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
COMMANDS = re.findall(r"^\| [^|]* \| `pytest ([^`]*)`", PAGE, re.MULTILINE)


def test_there_are_commands_for_every_group_of_faults():
    assert len(COMMANDS) > 30


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_selects_tests(command):
    options = shlex.split(command.replace("LONG", '-m "long or not long"'))
    listing = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *options]
    finished = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout[-1000:]
