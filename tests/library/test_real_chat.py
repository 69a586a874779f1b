"""A stuffed prompt on the embedded model: known paragraphs are reused in any order, and the answer is right."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from ragblend.bench.baseline import transformers_prefill
from ragblend.config import GenerationSettings, ReuseSettings
from ragblend.engine import Engine
from ragblend.library.library import Library
from ragblend.prompt import Message

pytestmark = pytest.mark.real_model

HANDBOOK = Path(__file__).parents[2] / "examples" / "handbook"
SYSTEM = Message("system", ("You are a helpful assistant. Use the context to answer, and answer in one sentence.",))
QUESTION = "For how long is the Nest covered by the warranty?"
SHORT = GenerationSettings(max_tokens=24)


@pytest.fixture(scope="module")
def engine() -> Engine:
    """In fp32: in 16 bits two exact computations round differently, and after some words differ."""
    return Engine(dtype="float32")


@pytest.fixture
def library(engine: Engine) -> Iterator[Library]:
    with Library.open(None, engine=engine, reuse=ReuseSettings(learn="paragraphs")) as opened:
        yield opened


@pytest.fixture(scope="module")
def paragraphs() -> list[str]:
    """Six of the warranty's, the answer among them."""
    found = re.split(r"\n\s*\n", (HANDBOOK / "warranty.md").read_text().strip())
    return [paragraph for paragraph in found if len(paragraph) > 250][:6]


def stuffed(paragraphs: list[str]) -> list[Message]:
    """LlamaIndex's wording."""
    context = "\n\n".join(paragraphs)
    text = (
        f"Context information is below.\n---------------------\n{context}\n---------------------\n"
        f"Given the context information and not prior knowledge, answer the query.\nQuery: {QUESTION}\nAnswer: "
    )
    return [SYSTEM, Message("user", (text,))]


def test_known_paragraphs_are_reused_and_at_ratio_one_the_answer_is_full_prefill_s(library, engine, paragraphs):
    library.precompute(paragraphs)
    messages = stuffed(paragraphs)
    stream = library.chat(messages, ratio=1.0, generation=SHORT)
    first_token = int(transformers_prefill(engine.adapter, stream._prompt.token_ids).logits.argmax())
    exact = stream.complete()
    assert exact.token_ids[0] == first_token
    assert exact.token_ids == library.chat(messages, policy="full", generation=SHORT).complete().token_ids
    assert "seven years" in library.chat(messages, generation=SHORT).complete().text


def test_after_one_question_four_fifths_of_a_shuffled_context_are_reused(library, engine, paragraphs):
    first = library.chat(stuffed(paragraphs), generation=SHORT).complete()
    assert (first.hits, first.matched_tokens) == (0, 0)
    assert first.learning > 0
    assert library.wait(300)
    context = sum(map(engine.count_tokens, paragraphs))
    for seed in range(2):
        shuffled = random.Random(seed).sample(paragraphs, k=len(paragraphs))
        answer = library.chat(stuffed(shuffled), generation=GenerationSettings(max_tokens=1)).complete()
        assert answer.matched_tokens >= 0.8 * context
        assert answer.usage.computed_tokens < 0.5 * answer.usage.prompt_tokens
