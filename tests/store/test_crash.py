"""Writers killed with SIGKILL at random moments: what was acknowledged is whole, the rest is not served."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from pathlib import Path

import pytest

from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore

ROOT = Path(__file__).parents[2]
# Those of a few puts.
MOMENTS = 300


def test_killed_writers_lose_nothing_that_was_acknowledged(tmp_path, make_kv, make_key, same_kv):
    kill_writers(10, tmp_path, make_kv, make_key, same_kv)


@pytest.mark.long
def test_two_hundred_killed_writers(tmp_path, make_kv, make_key, same_kv):
    kill_writers(200, tmp_path, make_kv, make_key, same_kv)


def kill_writers(kills: int, tmp_path: Path, make_kv, make_key, same_kv) -> None:
    chance = random.Random(0)
    command = [sys.executable, "-W", "error", "-m", "tests.store.killed_writer", str(tmp_path)]
    checked = 0
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, cwd=ROOT) as writer:
        for _ in range(kills):
            writer.stdin.write(f"{checked} {chance.randrange(MOMENTS)}\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == "gone\n"
            checked = check_acknowledged(kills, tmp_path, make_kv, make_key, same_kv)
        writer.stdin.close()
    assert checked > kills


def check_acknowledged(kills: int, root: Path, make_kv, make_key, same_kv) -> int:
    """Reopen the store and check every entry; the number of the first one that was not acknowledged."""
    log = root / "acknowledged"
    numbers = [int(line) for line in log.read_text().splitlines()] if log.exists() else []
    with contextlib.closing(Catalogue(root / "catalogue.db")) as catalogue:
        store = DiskStore(root, catalogue)
        keys = {make_key(number) for number in numbers}
        recorded = {entry.key for entry in store.entries()}
        assert keys <= recorded
        assert len(recorded - keys) <= kills  # committed, and killed before it could say so
        assert [entry.key for entry in store.entries() if store.check(entry.key)] == []
        for number in numbers:
            kv = make_kv(number)
            with contextlib.closing(store.open(make_key(number), kv.token_ids)) as reader:
                assert same_kv(reader, kv)
        for orphan in store.orphans():
            orphan.unlink()
        assert not store.misses
    return max(numbers, default=-1) + 1
