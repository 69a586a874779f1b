"""Questions about the example handbook, for the studies."""

from __future__ import annotations

import json
from typing import Any

from ragblend.bench.data import handbook_folder


def single_fact_questions(limit: int) -> list[dict[str, Any]]:
    """The first ``limit`` that one chunk answers: id, question, answers."""
    lines = (handbook_folder().parent / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    return [line for line in map(json.loads, lines) if line["hops"] == 1][:limit]
