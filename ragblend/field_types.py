"""Whether the values of a settings class are of the types that it declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeGuard, Union, get_args, get_origin, get_type_hints

from ragblend.errors import ConfigError

_IN_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    tuple: "a tuple of strings",
    Mapping: "a mapping",
    Path: "a path",
    NoneType: "None",
}


def require_types(settings: Any) -> None:
    """Raise ConfigError for the first field of a dataclass whose value is of another type than it declares.

    numpy's numbers are numbers, truth values are not. What is declared as a choice of texts is only asked to be text.
    """
    declared = _declared(type(settings))
    for each in fields(settings):
        kinds, value = declared[each.name], getattr(settings, each.name)
        if not any(_fits(value, kind) for kind in kinds):
            wanted = " or ".join(_in_words(kind) for kind in kinds)
            raise ConfigError(f"{each.name} must be {wanted}, got {value!r}")


def is_number(value: object) -> bool:
    """Whether it is a real number, of Python or of numpy; a truth value is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_finite_number(value: object) -> TypeGuard[float]:
    """Whether it is a number, as ``is_number``, that a float can hold and that is neither infinite nor NaN."""
    try:
        return is_number(value) and isfinite(value)  # type: ignore[arg-type]  # a Real
    except OverflowError:
        return False


def _declared(settings: type) -> dict[str, tuple[Any, ...]]:
    hints = get_type_hints(settings)
    return {name: get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,) for name, kind in hints.items()}


def _fits(value: object, kind: Any) -> bool:
    origin = get_origin(kind)
    if origin is Literal:
        return isinstance(value, str)
    if origin is tuple:  # of one type, of any length
        if not isinstance(value, Sequence) or isinstance(value, str):
            return False
        return all(_fits(each, get_args(kind)[0]) for each in value)
    if kind is float:
        return is_number(value)
    if kind is int:
        return is_number(value) and isinstance(value, Integral)
    return isinstance(value, origin or kind)


def _in_words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    plain = get_origin(kind) or kind
    return _IN_WORDS.get(plain, getattr(plain, "__name__", str(plain)))
