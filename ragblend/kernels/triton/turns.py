"""Kernels in the interpreter, asked for by several threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from ragblend.kernels.implementation import interpreted

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

# While it runs a kernel, the interpreter replaces Triton's language for the process as a whole.
_interpreter = threading.Lock()


def in_turn(operation: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The operation as it is; in the interpreter, such that one runs at a time."""
    if not interpreted():
        return operation

    @wraps(operation)
    def run(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        with _interpreter:
            return operation(*arguments, **options)

    return run
