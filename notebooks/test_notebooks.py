"""Every notebook runs from its first cell to its last, and its assertions hold."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.real_model

FOLDER = Path(__file__).parent
NOTEBOOKS = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def pictures(notebook: nbformat.NotebookNode) -> int:
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_shows_what_is_committed(name: str) -> None:
    committed = nbformat.read(FOLDER / name, as_version=4)
    assert all(cell.outputs or cell.execution_count for cell in committed.cells if cell.cell_type == "code")
    assert pictures(committed) > 0
    run = nbformat.from_dict(committed)
    NotebookClient(run, timeout=600, resources={"metadata": {"path": FOLDER}}).execute()
    assert pictures(run) == pictures(committed)
