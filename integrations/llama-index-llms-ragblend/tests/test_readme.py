"""The README's Python runs as it stands, one block after another, on the embedded models."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^( *)```python\n(.*?)^ *```$", README, re.MULTILINE | re.DOTALL)


@pytest.mark.real_model
def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    assert len(BLOCKS) == 2
    script = "\n".join(re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in BLOCKS)
    finished = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("six years") == 2
    assert "1 nodes reused" in finished.stdout
    assert (tmp_path / "kv" / "catalogue.sqlite").is_file()


def test_links_lead_to_files() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert links
    assert [link for link in links if not (Path(__file__).parents[1] / link).exists()] == []


def test_every_name_in_the_readme_can_be_imported() -> None:
    for module, name in re.findall(r"`(llama_index(?:\.\w+)+)\.(\w+)`", README):
        assert hasattr(__import__(module, fromlist=[name]), name)
