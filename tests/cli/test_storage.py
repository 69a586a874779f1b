"""Budgets, a remote tier, encryption and shared namespaces by command."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ragblend.config import byte_count
from ragblend.errors import ConfigError
from tests.cli.conftest import CHUNK_TOKENS, Run


def test_a_disk_budget_is_kept_and_shown(run: Run, docs: Path, model: Path, tmp_path: Path) -> None:
    library = tmp_path / "docs.rag"
    index = ["index", docs, "--library", library, "--model", model, "--chunk-tokens", CHUNK_TOKENS, "--json"]
    whole = run(*index).json["kv_bytes"]
    shutil.rmtree(library)
    budget = whole * 2 // 3
    limited = run(*index, "--disk-budget", budget, "--keep-free", "1MB", "--ttl-days", "7")
    assert (limited.status, limited.json["documents"]) == (0, 2)
    assert limited.json["kv_bytes"] <= budget
    store = run("info", "--library", library, "--json").json["store"]
    assert (store["disk_budget"], store["free_space_floor"], store["ttl_s"]) == (budget, 10**6, 7 * 86_400)
    assert store["evicted"] >= 1
    assert "computed when needed" in run("info", "--library", library).out
    verified = run("verify", "--library", library, "--json")
    assert (verified.status, verified.json["evicted"]) == (0, store["evicted"])
    lifted = run(*index, "--disk-budget", "none")
    assert lifted.status == 0
    store = run("info", "--library", library, "--json").json["store"]
    assert (store["disk_budget"], store["ttl_s"]) == (None, 7 * 86_400)
    assert run("repair", "--library", library, "--json").json["recomputed"] >= 1
    assert run("info", "--library", library, "--json").json["store"]["evicted"] == 0


def test_a_codec_is_kept_and_shown(run: Run, docs: Path, model: Path, tmp_path: Path) -> None:
    library = tmp_path / "docs.rag"
    assert run("index", docs, "--library", library, "--model", model, "--codec", "int8+zstd").status == 0
    assert run("info", "--library", library, "--json").json["store"]["codec"] == "int8+zstd"
    assert "as int8+zstd" in run("info", "--library", library).out
    assert run("index", docs, "--library", library).status == 0
    verified = run("verify", "--library", library, "--audit", 2, "--json")
    assert (verified.status, verified.json["audited"], verified.json["deviating"]) == (0, 2, [])
    assert run("ask", "How long?", "--library", library, "--max-tokens", 2, "--json").json["hits"] == 2


@pytest.mark.parametrize(
    ("codec", "status", "message"),
    [("int4", 1, "keeps its KV as raw, not as int4"), ("int3", 2, "the codec must be one of raw, ")],
)
def test_another_codec_is_refused_before_a_model_is_loaded(
    run: Run, docs: Path, library: Path, no_model: None, codec: str, status: int, message: str
) -> None:
    refused = run("index", docs, "--library", library, "--codec", codec)
    assert (refused.status, refused.out) == (status, "")
    assert message in refused.err
    assert refused.err.count("\n") == 1


def test_a_remote_tier_is_told_and_remembered(run: Run, docs: Path, model: Path, tmp_path: Path) -> None:
    library, remote = tmp_path / "docs.rag", tmp_path / "remote"
    assert run("index", docs, "--library", library, "--model", model, "--remote", f"file://{remote}").status == 0
    assert len(list(remote.rglob("*.safetensors"))) == 2
    assert f"file://{remote}" in "".join(run("info", "--library", library).out.split())
    assert run("remove", docs / "battery.md", "--library", library).status == 0
    assert len(list(remote.rglob("*.safetensors"))) == 1


def test_an_encrypted_namespace_needs_its_key(
    run: Run, docs: Path, model: Path, tmp_path: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "docs.rag"
    assert run("index", docs, "--library", library, "--model", model, "--encryption-key-file", key_file).status == 0
    refused = run("ask", "How long?", "--library", library, "--max-tokens", 2)
    assert (refused.status, refused.out) == (1, "")
    assert "give its key" in refused.err
    assert "give its key" in run("verify", "--library", library).err
    assert "AES-256-GCM" in run("info", "--library", library).out
    monkeypatch.setenv("RAGBLEND_ENCRYPTION_KEY_FILE", str(key_file))
    assert run("verify", "--library", library, "--json").json["damaged"] == []
    assert run("ask", "How long?", "--library", library, "--max-tokens", 2, "--json").json["hits"] == 2


def test_a_namespace_whose_key_is_gone_can_be_erased(
    run: Run, docs: Path, model: Path, tmp_path: Path, key_file: Path
) -> None:
    library = tmp_path / "docs.rag"
    key = ["--encryption-key-file", key_file]
    assert run("index", docs, "--library", library, "--model", model, *key).status == 0
    assert run("ask", "How long?", "--library", library, "--max-tokens", 2, *key).status == 0
    assert run("cache", "stats", "--library", library, *key).status == 0
    assert run("cache", "list", "--library", library, "--json", *key).json["caches"] == []
    key_file.unlink()
    for command in (["remove", docs], ["verify"], ["cache", "stats"], ["cache", "list"], ["cache", "clear"]):
        refused = run(*command, "--library", library)
        assert (refused.status, refused.out) == (1, "")
        assert "give its key" in refused.err
        assert refused.err.count("\n") == 1
    assert run("info", "--library", library, "--json").json["documents"] == 2
    assert run("remove", "--library", library).status == 2
    assert run("remove", docs, "--all", "--library", library).status == 2
    assert run("remove", "--all", "--library", library, "--json").json == {"removed": 2}
    found = run("info", "--library", library, "--json").json
    assert (found["documents"], found["kv_bytes"], found["store"]["encrypted"]) == (0, 0, False)


def test_a_shared_namespace_is_asked_too(run: Run, docs: Path, library: Path) -> None:
    ask = [
        "ask",
        "How long is the warranty?",
        "--library",
        library,
        "--namespace",
        "tenant",
        "--max-tokens",
        2,
        "--json",
    ]
    assert run(*ask).status == 1
    answer = run(*ask, "--shared-namespace", "default")
    assert (answer.status, answer.json["hits"]) == (0, 3)


@pytest.mark.parametrize(
    ("text", "count"),
    [("1000", 1000), ("1kB", 1000), ("20GB", 20 * 10**9), ("1.5 TiB", 3 << 39), ("500mb", 5 * 10**8), ("7 b", 7)],
)
def test_numbers_of_bytes(text: str, count: int) -> None:
    assert byte_count(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1 XB", "1e9", "1GB2"])
def test_what_is_no_number_of_bytes(text: str) -> None:
    with pytest.raises(ConfigError, match="no number of bytes"):
        byte_count(text)
