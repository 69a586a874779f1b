"""Looking after a library from the command line."""

from __future__ import annotations

from pathlib import Path

import torch

from ragblend import Library
from ragblend.kernels.layout import LayerKV
from ragblend.store.base import ChunkKV
from tests.cli.conftest import Run


def damage_one(library: Path) -> None:
    """Flip a bit in the last byte of one chunk KV file."""
    blob = next(path for path in sorted((library / "kv").rglob("*")) if path.is_file())
    content = bytearray(blob.read_bytes())
    content[-1] ^= 1
    blob.chmod(0o600)
    blob.write_bytes(content)


def test_info(run: Run, library: Path, model: Path, no_model: None) -> None:
    found = run("info", "--library", library, "--json").json
    assert (found["documents"], found["model"], found["model_reference"]) == (3, "tiny", str(model))
    assert found["chunk_tokens"] == 64
    as_text = run("info", "--library", library)
    assert as_text.status == 0
    assert "all-MiniLM-L6-v2" in as_text.out


def test_info_tells_what_an_interrupted_run_left(run: Run, library: Path, no_model: None) -> None:
    assert "unneeded" not in run("info", "--library", library).out
    with Library.open(library) as opened:
        layer = torch.zeros(2, 1, 3, 4)
        nbytes = opened.store.put("ab" * 32, ChunkKV((1, 2, 3), (LayerKV(layer[0], layer[1]),)))
    assert run("info", "--library", library, "--json").json["unneeded_bytes"] == nbytes
    assert "did not finish" in " ".join(run("info", "--library", library).out.split())


def test_damage_is_found_and_repaired(run: Run, library: Path) -> None:
    assert run("verify", "--library", library).status == 0
    damage_one(library)
    found = run("verify", "--library", library, "--json")
    assert found.status == 1
    assert len(found.json["damaged"]) == 1
    assert "ragblend repair" in run("verify", "--library", library).out

    assert run("repair", "--library", library, "--json").json["recomputed"] == 1
    assert run("verify", "--library", library, "--json").json["damaged"] == []


def test_sample_and_audit(run: Run, library: Path) -> None:
    found = run("verify", "--library", library, "--sample", 2, "--audit", 1, "--json").json
    assert (found["entries"], found["checked"], found["audited"], found["deviating"]) == (3, 2, 1, [])
    assert "audited" in run("verify", "--library", library).out
    assert run("verify", "--library", library, "--sample", 0).status == 2
    assert run("repair", "--library", library, "--all", "--json").json["recomputed"] == 3


def test_removed_document_is_gone(run: Run, indexed: Path, library: Path, no_model: None) -> None:
    assert run("remove", indexed / "docs" / "battery.md", "--library", library, "--json").json == {"removed": 1}
    assert run("info", "--library", library, "--json").json["documents"] == 2
    again = run("remove", indexed / "docs" / "battery.md", "--library", library)
    assert again.status == 2
    assert "not in the library" in again.err


def test_gc_deletes_leftovers(run: Run, library: Path, no_model: None) -> None:
    assert run("gc", "--library", library, "--json").json.keys() == {"entries", "files", "nbytes"}
    assert "entries and" in run("gc", "--library", library).out
