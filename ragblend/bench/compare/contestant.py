"""A system that takes part: installed, started, and absent with a reason when it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ragblend.bench.compare.environments import installed, process_environment
from ragblend.bench.compare.peers.protocol import PeerSettings
from ragblend.bench.compare.process import PeerProcess
from ragblend.bench.compare.report import SystemReport
from ragblend.bench.compare.systems import System
from ragblend.bench.compare.unpacked import unpacked_gguf
from ragblend.errors import PeerError, RagblendError
from ragblend.models.embedded import find_default_gguf
from ragblend.prompt import Prompt


@dataclass
class Contestant:
    """A system with its process while it runs, and why it does not."""

    system: System
    process: PeerProcess | None = None
    reason: str = ""
    weights: str = ""
    facts: dict[str, str] = field(default_factory=dict)
    repeated_tokens: int = 0
    prompt_tokens: int = 0

    @contextmanager
    def absent_on_failure(self) -> Iterator[None]:
        """A failure ends this system's part, and nothing else."""
        try:
            yield
        except RagblendError as error:
            self.reason = str(error)
            if self.process is not None:
                self.process.close()
            self.process = None

    def report(self) -> SystemReport:
        return SystemReport(
            self.system.name,
            self.process is not None,
            self.reason,
            self.weights,
            self.facts,
            self.repeated_tokens,
            self.prompt_tokens,
        )

    def running(self) -> PeerProcess:
        """Its process. Raises PeerError where it has none."""
        if self.process is None:
            raise PeerError("it has ended")
        return self.process

    def start(
        self,
        settings: PeerSettings,
        gguf: Path | None,
        folder: Path,
        stack: ExitStack,
        prompt: Prompt,
        note: Callable[[str], None],
    ) -> None:
        """Install and start a system, and see whether it reuses what it should. Raises PeerError."""
        system = self.system
        note(f"{system.name}: installing and starting")
        self.weights, settings = _weights(system, settings, gguf)
        own = folder / system.name
        own.mkdir()
        interpreter = installed(system)
        environment = process_environment(system, interpreter, settings.threads, folder)
        process = PeerProcess(
            interpreter,
            system.module,
            environment,
            replace(settings, folder=str(own), reuse=system.caches),
            own / "log",
        )
        self.process = stack.enter_context(process)
        self.facts = process.facts
        process.answer(prompt, 1)
        again = process.answer(prompt, 1)
        self.repeated_tokens, self.prompt_tokens = again.reused_tokens, len(prompt)
        if system.caches and again.reused_tokens < len(prompt) // 2:
            raise PeerError(
                f"of a prompt of {len(prompt)} tokens asked twice it reused {again.reused_tokens}: no cache is on"
            )


def _weights(system: System, settings: PeerSettings, gguf: Path | None) -> tuple[str, PeerSettings]:
    """What the system runs, in words, and the settings with its path. Raises PeerError without a GGUF file."""
    if system.weights == "model":
        return settings.dtype, settings
    if gguf is None:
        raise PeerError("it reads GGUF files: name the model by its .gguf file")
    if system.weights == "gguf":
        return f"quantised as in {gguf.name}", replace(settings, gguf=str(gguf))
    return "float16, the same values", replace(settings, gguf=str(unpacked_gguf(gguf)))


def gguf_of(model: str | Path | None) -> Path | None:
    """The model's GGUF file, if it is given by one."""
    if model is None or model == "":
        return find_default_gguf()
    path = Path(model).expanduser()
    return path if path.suffix.lower() == ".gguf" else None
