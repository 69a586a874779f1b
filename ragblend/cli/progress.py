"""The progress bar of indexing and repairing."""

from __future__ import annotations

from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ragblend.cli.output import excerpt, stderr

_NAME_WIDTH = 40


class Bar:
    """A bar on stderr, gone when it is finished. Follows the library's ``IndexProgress``."""

    def __init__(self, title: str) -> None:
        console = stderr()
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("documents · {task.fields[chunks]:,} chunks · {task.fields[tokens]:,} tokens"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task(title, total=None, chunks=0, tokens=0)
        self.chunks = 0
        self.tokens = 0

    def start(self, total_documents: int) -> None:
        self.bar.update(self.task, total=total_documents)
        self.bar.start()

    def document(self, path: str) -> None:
        self.bar.update(self.task, advance=1, description=excerpt(Path(path).name, _NAME_WIDTH))

    def chunk(self, tokens: int) -> None:
        self.chunks += 1
        self.tokens += tokens
        self.bar.update(self.task, chunks=self.chunks, tokens=self.tokens)

    def skipped(self, path: str, reason: str) -> None:  # the reasons follow in the report
        self.bar.update(self.task, advance=1)

    def finish(self) -> None:
        self.bar.stop()
