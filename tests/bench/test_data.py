"""Reading questions: what a line must be, and what is said about one that is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ragblend.bench.data import Passage, handbook_texts, read_examples
from ragblend.errors import ConfigError, PathNotFoundError

GOOD = {
    "id": "q1",
    "question": "How long?",
    "answers": ["two years", "24 months"],
    "passages": [{"title": "Warranty", "text": "It lasts two years."}],
}


def write(folder: Path, *lines: str) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_reads_questions_answers_and_passages(tmp_path: Path) -> None:
    [example] = read_examples(write(tmp_path, json.dumps(GOOD)))
    assert (example.id, example.question) == ("q1", "How long?")
    assert example.answers == ("two years", "24 months")
    assert example.passages == (Passage("Warranty", "It lasts two years."),)


def test_empty_lines_are_passed_over_and_titles_and_ids_may_be_missing(tmp_path: Path) -> None:
    bare = {"question": "?", "answers": ["1"], "passages": [{"text": "one"}]}
    path = write(tmp_path, "", json.dumps(GOOD), "", json.dumps(bare), "")
    first, second = read_examples(path)
    assert first.id == "q1"
    assert second.id == f"{path}, line 4"
    assert second.passages == (Passage("", "one"),)


def test_limit_reads_no_further(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps(GOOD), json.dumps({**GOOD, "id": "q2"}), "not JSON")
    assert [example.id for example in read_examples(path, limit=2)] == ["q1", "q2"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: not an object"),
        (json.dumps({**GOOD, "question": " "}), 'line 2: "question" must be text'),
        (json.dumps({**GOOD, "question": 7}), 'line 2: "question" must be text'),
        (json.dumps({**GOOD, "answers": []}), 'line 2: "answers" must be a list'),
        (json.dumps({**GOOD, "answers": "two years"}), 'line 2: "answers" must be a list'),
        (json.dumps({**GOOD, "answers": [2]}), 'line 2: "answer" must be text'),
        (json.dumps({**GOOD, "passages": []}), 'line 2: "passages" must be a list'),
        (json.dumps({**GOOD, "passages": ["text"]}), "line 2: a passage must be an object"),
        (json.dumps({**GOOD, "passages": [{"title": "t"}]}), 'line 2: "text" must be text'),
        (json.dumps({**GOOD, "passages": [{"title": 1, "text": "t"}]}), 'line 2: a passage\'s "title"'),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = write(tmp_path, json.dumps(GOOD), line)
    with pytest.raises(ConfigError) as error:
        read_examples(path)
    assert str(path) in str(error.value)
    assert complaint in str(error.value)


def test_a_file_must_be_there_and_hold_text(tmp_path: Path) -> None:
    with pytest.raises(PathNotFoundError, match="no such file"):
        read_examples(tmp_path / "missing.jsonl")
    with pytest.raises(PathNotFoundError, match="a folder; give a file"):
        read_examples(tmp_path)
    with pytest.raises(ConfigError, match="no examples in it"):
        read_examples(write(tmp_path, "", ""))
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_examples(tmp_path / "binary.jsonl")
    with pytest.raises(ConfigError, match="limit must be at least 1, got 0"):
        read_examples(tmp_path / "missing.jsonl", limit=0)


def test_the_handbook_of_this_repository_is_found() -> None:
    assert any("warranty" in text.lower() for text in handbook_texts())
