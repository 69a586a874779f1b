"""Questions for a model of 512 positions, and a model in a folder that several processes can load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import tiny


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file of questions that a test may change."""
    return write_questions(tmp_path)


def write_questions(folder: Path) -> Path:
    """Three questions with three passages each; the prompts have about 400 byte tokens."""
    lines = [
        {
            "id": f"q{number}",
            "question": f"How long is part {number} covered?",
            "answers": [f"{number + 2} years"],
            "passages": [
                {"title": name, "text": f"The {name} number {number} is covered for {number + 2} years."}
                for name in ("nest", "blade", "cable")
            ],
        }
        for number in range(3)
    ]
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny.family("llama", max_position_embeddings=1024).save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder
