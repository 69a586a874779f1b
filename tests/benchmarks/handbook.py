"""The example handbook and the questions about it, for the studies."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ragblend import Engine, Library
from ragblend.bench.data import Example, handbook_folder
from ragblend.bench.passages import Question
from ragblend.config import ChunkSettings
from ragblend.prompt import Segment


def single_fact_questions(limit: int | None = None) -> list[dict[str, Any]]:
    """The first ``limit`` (None: all) that one chunk answers: id, question, answers."""
    lines = (handbook_folder().parent / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["hops"] == 1][:limit]


def question_over(engine: Engine, line: dict[str, Any], chunks: Sequence[Segment], answer_tokens: int) -> Question:
    """One of these questions over chunks (and glue between them), in the order given."""
    example = Example(line["id"], line["question"], tuple(line["answers"]), ())
    gold = tuple(engine.template.text_ids(f" {line['answers'][0]}"))
    return Question(example, engine.template.build(chunks, line["question"]), gold, answer_tokens)


@contextmanager
def indexed_handbook(engine: Engine, chunk_tokens: int | None = None) -> Iterator[Library]:
    """A temporary library of the handbook, in chunks of a library's own size where none is given."""
    chunk = None if chunk_tokens is None else ChunkSettings(chunk_tokens)
    with (
        tempfile.TemporaryDirectory() as folder,
        Library.open(folder, engine=engine, chunk=chunk) as library,
    ):
        library.add([handbook_folder()])
        yield library
