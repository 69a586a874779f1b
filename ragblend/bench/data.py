"""Questions to measure on: JSON lines with answers and passages, and the example handbook's text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragblend.errors import ConfigError, PathNotFoundError

_EXAMPLES = Path(__file__).parents[2] / "examples"
_SHAPE = '{"id", "question", "answers": ["..."], "passages": [{"title", "text"}]}'


@dataclass(frozen=True, slots=True)
class Passage:
    """What was retrieved for a question. The title may be empty."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Example:
    """A question with the answers that count as right (at least one) and its passages (at least one)."""

    id: str
    question: str
    answers: tuple[str, ...]
    passages: tuple[Passage, ...]


def read_examples(path: Path, limit: int | None = None) -> list[Example]:
    """The first ``limit`` examples of a file, one JSON object a line; empty lines are passed over.

    Raises PathNotFoundError for a missing file, ConfigError (file and line) for a line of another shape.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit must be at least 1, got {limit}")
    if not path.is_file():
        raise PathNotFoundError(
            f"{path}: {'a folder' if path.is_dir() else 'no such file'}; give a file with one {_SHAPE} a line"
        )
    examples: list[Example] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if len(examples) == limit:
                    break
                if line.strip():
                    examples.append(_parse(line, f"{path}, line {number}"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    if not examples:
        raise ConfigError(f"{path}: no examples in it; give one {_SHAPE} a line")
    return examples


def handbook_texts() -> list[str]:
    """The documents of the example handbook; none where the package stands without its repository."""
    return [path.read_text(encoding="utf-8") for path in sorted(handbook_folder().glob("*.md"))]


def handbook_folder() -> Path:
    """Where the example handbook is, if this is its repository."""
    return _EXAMPLES / "handbook"


def handbook_questions() -> list[tuple[str, str]]:
    """Questions about the example handbook, each with its first right answer; none without the repository."""
    path = _EXAMPLES / "questions.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [(line["question"], line["answers"][0]) for line in map(json.loads, lines)]


def _parse(line: str, where: str) -> Example:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: not an object of the form {_SHAPE}")
    return Example(
        id=str(value.get("id", where)),
        question=_text(value, "question", where),
        answers=tuple(_text({"answer": answer}, "answer", where) for answer in _list(value, "answers", where)),
        passages=tuple(_passage(passage, where) for passage in _list(value, "passages", where)),
    )


def _passage(value: Any, where: str) -> Passage:
    if not isinstance(value, dict):
        raise ConfigError(f'{where}: a passage must be an object with "title" and "text"')
    title = value.get("title") or ""
    if not isinstance(title, str):
        raise ConfigError(f'{where}: a passage\'s "title" must be text')
    return Passage(title, _text(value, "text", where))


def _text(value: dict[str, Any], name: str, where: str) -> str:
    text = value.get(name)
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f'{where}: "{name}" must be text that is not empty')
    return text


def _list(value: dict[str, Any], name: str, where: str) -> list[Any]:
    items = value.get(name)
    if not isinstance(items, list) or not items:
        raise ConfigError(f'{where}: "{name}" must be a list that is not empty')
    return items
