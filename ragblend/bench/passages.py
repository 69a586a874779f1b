"""Prompts of examples: each passage a chunk, with its KV in memory for as long as the question is measured."""

from __future__ import annotations

from dataclasses import dataclass

from ragblend.bench.data import Example
from ragblend.bench.stores import UNBOUNDED
from ragblend.config import require
from ragblend.engine import Engine
from ragblend.prompt import Prompt, PromptTemplate, Segment
from ragblend.store.base import KVStore
from ragblend.store.key import digest_fields, token_bytes
from ragblend.store.memory import MemoryStore


@dataclass(frozen=True)
class Question:
    """An example as the model meets it. gold_ids: the first right answer, as it would follow the prompt.

    answer_tokens: how long the model's answer may be.
    """

    example: Example
    prompt: Prompt
    gold_ids: tuple[int, ...]
    answer_tokens: int

    @property
    def room(self) -> int:
        """Positions behind the prompt that measuring it takes."""
        return max(self.answer_tokens, len(self.gold_ids))


class PassagePrompts:
    """Builds prompts with a wording of their own on an engine's anchor.

    A passage of more than ``passage_tokens`` is cut into parts of about equal length.
    """

    def __init__(self, engine: Engine, question: str, passage_tokens: int, answer_tokens: int) -> None:
        require(passage_tokens >= 1, f"passage tokens must be at least 1, got {passage_tokens}")
        require(answer_tokens >= 1, f"answer tokens must be at least 1, got {answer_tokens}")
        self._engine = engine
        self._template = PromptTemplate(engine.tokenizer, engine.template.system, question)
        self._passage_tokens = passage_tokens
        self._answer_tokens = answer_tokens

    def question(self, example: Example) -> Question:
        """The example's prompt and right answer in tokens; nothing is computed yet."""
        chunks = [
            Segment("chunk", part, digest_fields(token_bytes(part)))
            for passage in example.passages
            for part in self._parts(self._template.chunk_ids(passage.title, "", passage.text))
        ]
        prompt = self._template.build(chunks, example.question)
        ends = str(self._engine.tokenizer.decode(prompt.token_ids[-1:]))
        answer = example.answers[0].strip()
        gold_ids = tuple(self._template.text_ids(answer if ends[-1:].isspace() else f" {answer}"))
        return Question(example, prompt, gold_ids, self._answer_tokens)

    def prefilled(self, question: Question) -> KVStore:
        """A store with the KV of the question's chunks, each prefilled behind the anchor."""
        store = MemoryStore(budget_bytes=UNBOUNDED)
        chunks = question.prompt.chunks
        for chunk, kv in zip(chunks, self._engine.prefill([chunk.token_ids for chunk in chunks]), strict=True):
            store.put(chunk.key or "", kv)
        return store

    def _parts(self, ids: tuple[int, ...]) -> list[tuple[int, ...]]:
        count = -(-len(ids) // self._passage_tokens)
        size = -(-len(ids) // count)
        return [ids[start : start + size] for start in range(0, len(ids), size)]
