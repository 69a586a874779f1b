"""The side of a peer's process: one JSON object a line on stdin, one for each on stdout.

Of ragblend only this file is imported in another system's environment, so it needs nothing but Python.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

Run = tuple[str, list[int]]
"""A segment's kind (prefix, chunk, glue or suffix) and its token ids."""


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """model: a transformers folder or id. gguf: the same model for llama.cpp, or empty.

    context: positions that prompt and answer may take. reuse: whether the system may reuse the KV of earlier
    prompts, where that is a matter of choice. policy, ratio: ours. folder: for files while the process runs.
    """

    model: str
    gguf: str
    dtype: str
    threads: int
    context: int
    reuse: bool
    policy: str
    ratio: float
    folder: str


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. Seconds run from the call with the prompt's ids.

    tokens: generated. token_ids or text: the answer in whichever form the system gives it. reused_tokens:
    prompt tokens whose KV was there already.
    """

    ttft_s: float
    total_s: float
    tokens: int
    reused_tokens: int
    token_ids: list[int] | None = None
    text: str | None = None


class Peer(Protocol):
    """A system that answers prompts. It decodes greedily and ends an answer at the model's end token."""

    def facts(self) -> dict[str, str]:
        """What a reader of the figures should know: version, weights, attention."""
        ...

    def prepare(self, chunks: list[list[int]]) -> None:
        """Documents that prompts are going to contain. Systems that index nothing ignore them."""
        ...

    def answer(self, runs: list[Run], answer_tokens: int) -> Reply:
        """Answer the prompt that the runs make."""
        ...

    def step_logits(self, token_ids: list[int], path: str) -> bool:
        """Behind the prompt answered last, write the logits [n, vocabulary] that predict each of ``token_ids``.

        A float32 array in NumPy's format. False where the system does not give its logits.
        """
        ...


def serve(start: Callable[[PeerSettings], Peer]) -> None:
    """Answer requests until stdin ends. What libraries print goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    peer: Peer | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "start":
                peer = start(PeerSettings(**request["settings"]))
                result: Any = peer.facts()
            else:
                result = _carry_out(peer, request)
        except Exception as error:
            words = " ".join(str(error).split())
            _write(replies, {"error": f"{type(error).__name__}: {words}"})
        else:
            _write(replies, {"result": result})


def _carry_out(peer: Peer | None, request: dict[str, Any]) -> Any:
    if peer is None:
        raise RuntimeError("the peer was asked before it was started")
    match request["do"]:
        case "prepare":
            reset_peak_memory()
            return peer.prepare(request["chunks"])
        case "answer":
            return asdict(peer.answer([(kind, ids) for kind, ids in request["runs"]], request["answer_tokens"]))
        case "step_logits":
            return peer.step_logits(request["token_ids"], request["path"])
        case "peak_memory":
            return peak_memory()
        case other:
            raise RuntimeError(f"unknown request {other!r}")


def joined(runs: list[Run]) -> list[int]:
    """The prompt's ids."""
    return [token for _, ids in runs for token in ids]


def peak_memory() -> int:
    """Most bytes of memory that this process has held since the last reset (where the kernel has no reset: ever)."""
    status = Path("/proc/self/status")
    if status.exists():
        peaks = [line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:")]
        if peaks:
            return int(peaks[0].split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak_memory() -> None:
    """Let ``peak_memory`` begin anew, where the kernel can."""
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        try:
            reset.write_text("5", encoding="ascii")
        except OSError:  # not permitted in this container: the peak is then the process's
            return


def _write(replies: TextIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()
