"""What is asked of every system: series of prompts in token ids, each of which lets something be reused, or nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ragblend.bench.chunks import cut, shuffled_sentences
from ragblend.config import require
from ragblend.prompt import Message, Passage, Prompt, PromptTemplate, Segment
from ragblend.prompt.chat import TemplateText
from ragblend.prompt.segments import prompt_of

_DOCUMENTS = "Documents:\n\n"


@dataclass(frozen=True)
class Material:
    """Texts and questions that prompts are made of. context: tokens of text in each prompt."""

    template: PromptTemplate
    texts: Sequence[str]
    questions: Sequence[tuple[str, str]]
    context: int
    chunk_tokens: int


@dataclass(frozen=True)
class Workload:
    """chunks: what a system may index before the prompts come. prompts: the first one warms up and is not counted."""

    name: str
    chunks: tuple[tuple[int, ...], ...]
    prompts: tuple[Prompt, ...]


def reordered(material: Material, count: int) -> Workload:
    """The same documents in every prompt, in a new order each time, under new questions."""
    chunks = cut(material.template, material.texts, material.context, material.chunk_tokens)
    shuffling = random.Random(0)
    prompts = []
    for number in range(count):
        order = chunks if number == 0 else shuffling.sample(chunks, len(chunks))
        prompts.append(_about(material, order, _question(material, number)[0]))
    return Workload("reordered", tuple(chunks), tuple(prompts))


def conversation(material: Material, count: int) -> Workload:
    """Questions about the same documents, each behind all questions and answers before it."""
    texts = [*material.texts[1:], material.texts[0]]  # begins otherwise than the other workloads
    chunks = cut(material.template, texts, material.context, material.chunk_tokens)
    prompts = []
    for turns in range(1, count + 1):
        asked = [_question(material, number) for number in range(turns)]
        messages = [Message("system", (material.template.system,))]
        for number, (question, answer) in enumerate(asked):
            documents = tuple(Passage(str(index)) for index in range(len(chunks))) if number == 0 else ()
            messages.append(Message("user", (*([_DOCUMENTS] if documents else []), *documents, question)))
            messages.append(Message("assistant", (answer,)))
        prompts.append(_rendered(material.template, messages[:-1], chunks))
    return Workload("conversation", tuple(chunks), tuple(prompts))


def system_prompt(material: Material, count: int) -> Workload:
    """One long system prompt, a short question each time."""
    texts = [*material.texts[2:], *material.texts[:2]]
    [instructions] = cut(material.template, texts, material.context, material.context)
    prompts = []
    for number in range(count):
        messages = [Message("system", (Passage("0"),)), Message("user", (_question(material, number)[0],))]
        prompts.append(_rendered(material.template, messages, [instructions], kind="glue"))
    return Workload("system", (), tuple(prompts))


def fresh(material: Material, count: int) -> Workload:
    """Documents that nobody has seen before: nothing can be reused."""
    prompts = []
    for number in range(count):
        texts = shuffled_sentences(material.texts, seed=number)
        chunks = cut(material.template, texts, material.context, material.chunk_tokens)
        prompts.append(_about(material, chunks, _question(material, number)[0]))
    return Workload("fresh", (), tuple(prompts))


WORKLOADS: dict[str, Callable[[Material, int], Workload]] = {
    "reordered": reordered,
    "conversation": conversation,
    "system": system_prompt,
    "fresh": fresh,
}


def require_workloads(names: Sequence[str]) -> None:
    """Raise ConfigError unless there is a workload of every name."""
    for name in names:
        require(name in WORKLOADS, f"unknown workload {name!r}: choose from {', '.join(WORKLOADS)}")


def _question(material: Material, number: int) -> tuple[str, str]:
    return material.questions[number % len(material.questions)]


def _about(material: Material, chunks: Sequence[tuple[int, ...]], question: str) -> Prompt:
    return material.template.build([Segment("chunk", ids) for ids in chunks], question)


def _rendered(
    template: PromptTemplate, messages: Sequence[Message], chunks: Sequence[tuple[int, ...]], kind: str = "chunk"
) -> Prompt:
    """The conversation in the model's own form; a passage stands for the chunk that it numbers."""
    runs = []
    for piece in template.chat.render(messages):
        if isinstance(piece, Passage):
            runs.append(Segment("chunk" if kind == "chunk" else "glue", chunks[int(piece.text)]))
        elif isinstance(piece, TemplateText):
            runs.append(Segment("glue", tuple(template.control_ids(piece.text))))
        elif isinstance(piece, str):
            runs.append(Segment("glue", tuple(template.text_ids(piece))))
    return prompt_of(runs)
