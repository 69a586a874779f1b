"""Other libraries' chatter kept off the terminal, for as long as the command line runs."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from rich.markup import escape

from ragblend.cli.output import stderr

# Read by the libraries when they are imported, which is after this.
_SILENCE = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        stderr().print(f"[dim]{escape(record.getMessage())}[/dim]", soft_wrap=True)


@contextmanager
def quiet(*, debug: bool) -> Iterator[None]:
    """Hide other libraries' warnings and progress bars (not with ``debug``); show ragblend's own notes on stderr."""
    before = dict(os.environ)
    log = logging.getLogger("ragblend")
    handler = _StderrHandler()
    log.addHandler(handler)
    try:
        with warnings.catch_warnings():
            if not debug:
                warnings.simplefilter("ignore")
                os.environ.update({name: value for name, value in _SILENCE.items() if name not in before})
            yield
    finally:
        log.removeHandler(handler)
        for name in _SILENCE:
            if name not in before:
                os.environ.pop(name, None)
