"""A system's process: what it may do wrong, and what is said about it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from ragblend.bench.compare.peers.protocol import PeerSettings
from ragblend.bench.compare.process import PeerProcess
from ragblend.errors import PeerError
from ragblend.prompt import Prompt, Segment

PROMPT = Prompt((Segment("prefix", (1, 2)), Segment("suffix", (3,))))
ECHO = """
import os, sys, time
from ragblend.bench.compare.peers.protocol import Reply, joined, serve

class Echo:
    def __init__(self, settings):
        if settings.policy == "refuse":
            raise ValueError("not this\\npolicy")
    def facts(self):
        print("a library's chatter")
        return {"version": "1"}
    def prepare(self, chunks):
        self.held = bytearray(50_000_000)
    def answer(self, runs, answer_tokens):
        ids = joined(runs)
        if ids == [9]:
            print("out of luck", file=sys.stderr)
            sys.stderr.flush()
            os._exit(3)
        if ids == [8]:
            time.sleep(60)
        return Reply(0.1, 0.2, len(ids), 0, token_ids=ids)
    def step_logits(self, token_ids, path):
        return False

serve(Echo)
"""


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Starts a process that runs ECHO in the place of a system."""
    package = tmp_path / "echoing"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "echo.py").write_text(ECHO)
    monkeypatch.setattr("ragblend.bench.compare.process._PEERS", "echoing")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}

    def start(policy: str = "query") -> PeerProcess:
        settings = PeerSettings("", "", "float32", 1, 64, True, policy, 0.1, str(tmp_path))
        return PeerProcess(Path(sys.executable), "echo", environment, settings, tmp_path / "log")

    return start


def test_it_is_asked_and_answers(started) -> None:
    with started() as process:
        assert process.facts == {"version": "1"}
        process.prepare([(1, 2)])
        assert process.answer(PROMPT, 4).token_ids == [1, 2, 3]
        assert not process.step_logits([1], Path("nowhere"))
        assert process.peak_memory() > 50_000_000


def test_an_error_is_one_line_with_its_kind(started) -> None:
    with pytest.raises(PeerError, match=r"^ValueError: not this policy$"):
        started("refuse")


def test_a_process_that_ends_leaves_its_last_words(started) -> None:
    with started() as process:
        with pytest.raises(PeerError, match="its process ended: out of luck"):
            process.answer(Prompt((Segment("suffix", (9,)),)), 1)
        with pytest.raises(PeerError, match="its process ended"):
            process.answer(PROMPT, 1)


def test_a_process_that_hangs_is_given_up(started, monkeypatch: pytest.MonkeyPatch) -> None:
    with started() as process:
        monkeypatch.setattr("ragblend.bench.compare.process.REQUEST_S", 0.2)
        with pytest.raises(PeerError, match="no reply to 'answer'"):
            process.answer(Prompt((Segment("suffix", (8,)),)), 1)
