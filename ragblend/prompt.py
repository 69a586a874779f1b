"""Prompts as lists of segments, and the template that builds them.

Each segment is tokenised by itself and the prompt's ids are their concatenation, so a chunk has
the same ids wherever it stands. What comes before the first chunk is the template's *anchor*:
chunks are prefilled behind the same ids, which makes the first chunk's KV exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Literal

from ragblend.errors import ConfigError
from ragblend.results import Source
from ragblend.store.key import digest_fields, token_bytes

SegmentKind = Literal["prefix", "chunk", "glue", "suffix"]

DEFAULT_SYSTEM = "You answer questions from the documents given to you, briefly and exactly."
DEFAULT_QUESTION = "Answer the question in one short sentence, using only the documents above.\nQuestion: {question}"
_CHUNKS_GO_HERE = "\u241e\u241echunks\u241e\u241e"
_QUESTION_GOES_HERE = "\u241e\u241equestion\u241e\u241e"


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of prompt tokens. ``key`` names a chunk's entry in the store, ``source`` its origin."""

    kind: SegmentKind
    token_ids: tuple[int, ...]
    key: str | None = None
    source: Source | None = None

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class Prompt:
    """Segments in order. The last one must be a non-empty suffix: its last row gives the first token."""

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        if not self.segments or self.segments[-1].kind != "suffix" or not self.segments[-1].token_ids:
            raise ConfigError("a prompt must end with a suffix of at least one token")

    def __len__(self) -> int:
        return sum(len(segment) for segment in self.segments)

    @cached_property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for segment in self.segments for token in segment.token_ids)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """Position of each segment's first token."""
        return tuple(accumulate((len(segment) for segment in self.segments), initial=0))[:-1]

    @property
    def chunks(self) -> tuple[Segment, ...]:
        return tuple(segment for segment in self.segments if segment.kind == "chunk")


def chunk_text(title: str, heading: str, text: str) -> str:
    """A chunk as the model reads it: a title line, the text, a blank line. No glue is needed between."""
    label = " > ".join(part for part in (title, heading) if part)
    return f"[{label}]\n{text.strip()}\n\n" if label else f"{text.strip()}\n\n"


class PromptTemplate:
    """Builds prompts through the tokenizer's chat template, or as plain text where it has none.

    Text from documents and questions is tokenised so that it cannot form control tokens.
    """

    def __init__(self, tokenizer: Any, system: str = DEFAULT_SYSTEM, question: str = DEFAULT_QUESTION) -> None:
        if "{question}" not in question:
            raise ConfigError("the question template must contain {question}")
        self.tokenizer = tokenizer
        self.system = system
        self.question = question
        rendered = self._render_chat(f"Documents:\n\n{_CHUNKS_GO_HERE}{_QUESTION_GOES_HERE}")
        before, rest = rendered.split(_CHUNKS_GO_HERE)
        _, after = rest.split(_QUESTION_GOES_HERE)
        self.anchor_ids = tuple(self.control_ids(before))
        self._closing_ids = tuple(self.control_ids(after))

    def digest(self) -> str:
        """Identity of the template: what it puts before and after, as ids, and the question's wording."""
        return digest_fields(token_bytes(self.anchor_ids), token_bytes(self._closing_ids), self.question)

    def control_ids(self, text: str) -> list[int]:
        """Ids of template text, in which control tokens such as ``<|im_start|>`` are parsed."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def text_ids(self, text: str) -> list[int]:
        """Ids of untrusted text: control tokens in it stay ordinary characters."""
        return list(self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])

    def chunk_ids(self, title: str, heading: str, text: str) -> tuple[int, ...]:
        """Ids of a chunk as it is prefilled and as it stands in every prompt."""
        return tuple(self.text_ids(chunk_text(title, heading, text)))

    def bare_ids(self, text: str) -> tuple[int, ...]:
        """Ids of a text that is a chunk just as it stands, without a title line or blank line of its own."""
        return tuple(self.text_ids(text.strip()))

    def build(self, chunks: Sequence[Segment], question: str) -> Prompt:
        """The prompt for ``question`` over ``chunks`` in the given order (there may be none)."""
        if not question.strip():
            raise ConfigError("the question is empty: ask something")
        suffix = (*self.text_ids(self.question.format(question=question.strip())), *self._closing_ids)
        return Prompt((Segment("prefix", self.anchor_ids), *chunks, Segment("suffix", suffix)))

    def _render_chat(self, user: str) -> str:
        if getattr(self.tokenizer, "chat_template", None) is None:
            beginning = self.tokenizer.bos_token or ""
            return f"{beginning}{self.system}\n\n{user}\nAnswer:"
        messages = [{"role": "system", "content": self.system}, {"role": "user", "content": user}]
        try:
            return self._apply_chat_template(messages)
        except Exception:  # templates refuse a system role each in their own way (gemma raises from Jinja)
            return self._apply_chat_template([{"role": "user", "content": f"{self.system}\n\n{user}"}])

    def _apply_chat_template(self, messages: list[dict[str, str]]) -> str:
        rendered = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return str(rendered)
