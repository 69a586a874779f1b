"""The template that builds prompts from chunks and a question, and tokenises text for every prompt.

Each segment is tokenised by itself and the prompt's ids are their concatenation, so a chunk has
the same ids wherever it stands.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from ragblend.config import require_question
from ragblend.errors import ConfigError
from ragblend.prompt.chat import ChatTemplate, Piece
from ragblend.prompt.conversation import CachePoint, Message, Passage
from ragblend.prompt.segments import Prompt, Segment
from ragblend.store.key import digest_fields, token_bytes

DEFAULT_SYSTEM = "You answer questions from the documents given to you, briefly and exactly."
DEFAULT_QUESTION = "Answer the question in one short sentence, using only the documents above.\nQuestion: {question}"
CHUNKS_GO_HERE = Passage("chunks")
ASKING = Message("user", ("Documents:\n\n", CHUNKS_GO_HERE))


def chunk_text(title: str, heading: str, text: str) -> str:
    """A chunk as the model reads it: a title line, the text, a blank line. No glue is needed between."""
    label = " > ".join(part for part in (title, heading) if part)
    return f"[{label}]\n{text.strip()}\n\n" if label else f"{text.strip()}\n\n"


class PromptTemplate:
    """Builds prompts through the tokenizer's chat template, or as plain text where it has none.

    Text from documents and questions is tokenised so that it cannot form control tokens. Safe to use
    from several threads. chat: renders conversations. prefix_ids: what stands before the first chunk.
    """

    def __init__(self, tokenizer: Any, system: str = DEFAULT_SYSTEM, question: str = DEFAULT_QUESTION) -> None:
        if "{question}" not in question:
            raise ConfigError("the question template must contain {question}")
        self.tokenizer = tokenizer
        self.system = system
        self.question = question
        self.chat = ChatTemplate(tokenizer)
        # A tokenizer is told whether to parse control tokens by a flag on itself, not with the call.
        self._lock = threading.Lock()
        pieces = self.chat.render([Message("system", (system,)), ASKING])
        chunks = pieces.index(CHUNKS_GO_HERE)
        self.prefix_ids = tuple(self.control_ids("".join(map(_text, pieces[:chunks]))))
        self._closing_ids = tuple(self.control_ids("".join(map(_text, pieces[chunks + 1 :]))))

    def digest(self) -> str:
        """Identity of the template: what it puts before and after, as ids, and the question's wording."""
        return digest_fields(token_bytes(self.prefix_ids), token_bytes(self._closing_ids), self.question)

    def control_ids(self, text: str) -> list[int]:
        """Ids of template text, in which control tokens such as ``<|im_start|>`` are parsed."""
        return self._ids(text, add_special_tokens=False)

    def text_ids(self, text: str) -> list[int]:
        """Ids of untrusted text: control tokens in it stay ordinary characters."""
        return self._ids(text, add_special_tokens=False, split_special_tokens=True)

    @cached_property
    def opening_ids(self) -> tuple[int, ...]:
        """What the tokenizer puts before plain text by itself, for example a beginning-of-sequence token."""
        plain, opened = self.control_ids("a"), self._ids("a")
        starts = (at for at in range(len(opened)) if opened[at : at + len(plain)] == plain)
        return tuple(opened[: next(starts, 0)])

    def chunk_ids(self, title: str, heading: str, text: str) -> tuple[int, ...]:
        """Ids of a chunk as it is prefilled and as it stands in every prompt."""
        return tuple(self.text_ids(chunk_text(title, heading, text)))

    def bare_ids(self, text: str) -> tuple[int, ...]:
        """Ids of a text that is a chunk just as it stands, without a title line or blank line of its own."""
        return tuple(self.text_ids(text.strip()))

    def build(
        self, chunks: Sequence[Segment], question: str, around: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    ) -> Prompt:
        """The prompt for ``question`` over ``chunks`` in the given order (there may be none).

        around: ids before the chunks and behind the question, instead of the template's own.
        """
        require_question(question)
        before, behind = around or (self.prefix_ids, self._closing_ids)
        suffix = (*self.text_ids(self.question.format(question=question.strip())), *behind)
        return Prompt((Segment("prefix", before), *chunks, Segment("suffix", suffix)))

    def _ids(self, text: str, **options: bool) -> list[int]:
        try:
            with self._lock:
                return list(self.tokenizer(text, **options)["input_ids"])
        except TypeError as error:  # the tokenizer's way to refuse half a character
            raise ConfigError("text must be valid Unicode, and this has a lone surrogate: replace it") from error


def _text(piece: Piece) -> str:
    if isinstance(piece, CachePoint):
        return ""
    return piece if isinstance(piece, str) else piece.text
