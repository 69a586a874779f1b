"""Our side of a peer's process: start it, ask it, know why it failed."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ragblend.bench.compare.peers.protocol import PeerSettings, Reply
from ragblend.errors import PeerError
from ragblend.prompt import Prompt

START_S = 900.0
REQUEST_S = 900.0
_PEERS = "ragblend.bench.compare.peers"


class PeerProcess:
    """A system in a process of its own. Every call raises PeerError when it fails, ends or takes too long."""

    def __init__(
        self, interpreter: Path, module: str, environment: Mapping[str, str], settings: PeerSettings, log: Path
    ) -> None:
        self._log = log
        # -P: the folder that the command runs in is nobody's package.
        command = [str(interpreter), "-P", "-m", f"{_PEERS}.{module}"]
        with log.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(environment),
                text=True,
                encoding="utf-8",
            )
        self._replies: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        try:
            self.facts: dict[str, str] = self._ask(START_S, do="start", settings=asdict(settings))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def prepare(self, chunks: Sequence[tuple[int, ...]]) -> None:
        """Tell it the documents to come; from here on the peak of its memory is counted."""
        self._ask(REQUEST_S, do="prepare", chunks=chunks)

    def answer(self, prompt: Prompt, answer_tokens: int) -> Reply:
        runs = [(segment.kind, segment.token_ids) for segment in prompt.segments]
        return Reply(**self._ask(REQUEST_S, do="answer", runs=runs, answer_tokens=answer_tokens))

    def step_logits(self, token_ids: Sequence[int], path: Path) -> bool:
        """Write its logits along ``token_ids`` behind the last prompt to ``path``, if it gives them."""
        return bool(self._ask(REQUEST_S, do="step_logits", token_ids=token_ids, path=str(path)))

    def peak_memory(self) -> int:
        """Bytes, since ``prepare``."""
        return int(self._ask(REQUEST_S, do="peak_memory"))

    def close(self) -> None:
        """End the process; it has nothing to lose."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # what it had not read yet
                self._process.stdin.close()
        self._reader.join(timeout=5.0)

    def _ask(self, patience_s: float, **request: Any) -> Any:
        try:
            if self._process.stdin is None or self._process.stdin.closed:
                raise BrokenPipeError
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._replies.get(timeout=patience_s)
        except BrokenPipeError:
            line = ""
        except queue.Empty:
            self.close()
            raise PeerError(f"no reply to {request['do']!r} within {patience_s:.0f} s") from None
        if not line:
            self.close()
            raise PeerError(f"its process ended: {self._last_words()}")
        reply = json.loads(line)
        if "error" in reply:
            raise PeerError(reply["error"])
        return reply["result"]

    def _read(self, replies: IO[str] | None) -> None:
        if replies is not None:
            with replies:
                for line in replies:
                    self._replies.put(line)
        self._replies.put("")

    def _last_words(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else f"exit status {self._process.returncode}"
