"""The commands of docs/reliability.md name tests that are there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "reliability.md").read_text()
COMMANDS = re.findall(r"^\| [^|]* \| `pytest ([^`]*)`", PAGE, re.MULTILINE)


def test_their_files_are_there():
    assert len(COMMANDS) > 30
    for command in COMMANDS:
        paths = [ROOT / word for word in shlex.split(command) if word.startswith("tests")]
        assert paths
        assert all(path.exists() for path in paths), command
