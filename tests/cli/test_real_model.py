"""The installed command, in a process of its own, on the embedded model: what a newcomer sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real_model

FACTS = {
    "warranty.md": "# Warranty\n\nThe warranty of the Heron robot lasts six years.\n",
    "battery.md": "# Battery\n\nThe battery of the Heron robot is charged in ninety minutes.\n",
}


def ragblend(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from ragblend.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, env=os.environ, capture_output=True, text=True, check=True)


def test_index_and_ask_in_two_processes(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for name, text in FACTS.items():
        (docs / name).write_text(text)
    library = tmp_path / "facts.rag"
    ragblend("fetch")  # converted before, so that nothing is said about it below

    indexed = ragblend("index", docs, "--library", library)
    assert indexed.stderr == ""
    assert indexed.stdout.splitlines()[-1].startswith("2 documents · 2 chunks · ")

    question = "How many years does the warranty of the Heron robot last?"
    asked = ragblend("ask", question, "--library", library, "--compare", "--json", "--ratio", 1, "--max-tokens", 24)
    assert asked.stderr == ""
    found = json.loads(asked.stdout)
    assert "six years" in found["answer"]
    assert found["full"]["answer"] == found["answer"]
    assert Path(found["sources"][0]["document"]).name == "warranty.md"
    assert found["model"] == "SmolLM2-135M-Instruct"
    assert found["usage"]["cached_tokens"] > 0
