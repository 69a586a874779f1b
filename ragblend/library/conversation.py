"""From a conversation's pieces to a prompt: known texts and passages become chunks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from ragblend.library.known import KnownTexts
from ragblend.library.precomputed import Text
from ragblend.library.protocol import LibraryEngine
from ragblend.prompt import CachePoint, Passage, Prompt, Segment, chunk_text
from ragblend.prompt.blocks import blocks
from ragblend.prompt.chat import Piece, TemplateText
from ragblend.prompt.segments import CacheBreak, prompt_of
from ragblend.results import Source
from ragblend.store.base import KVStore

Shown = TemplateText | str | Passage


@dataclass
class Conversation:
    """A prompt, and what of it the store does not have.

    lost: known texts whose KV is gone. chunks: passages that are not known. rest: text in which no known text was
    found, without the instructions at its beginning and the question at its end.
    """

    runs: list[Segment] = field(default_factory=list)
    lost: list[Text] = field(default_factory=list)
    chunks: list[str] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)
    cache_points: list[CacheBreak] = field(default_factory=list)

    @property
    def prompt(self) -> Prompt:
        return prompt_of(self.runs, tuple(self.cache_points))

    @property
    def tokens(self) -> int:
        return sum(map(len, self.runs))


class ConversationReader:
    """Reads conversations for one namespace.

    known: None where nothing is. find: whether text is searched for what is known; passages are looked up anyhow.
    """

    def __init__(
        self, engine: LibraryEngine, store: KVStore, namespace: str, known: KnownTexts | None, *, find: bool = True
    ) -> None:
        self._engine = engine
        self._template = engine.template
        self._store = store
        self._namespace = namespace
        self._known = known
        self._find = find

    def read(self, pieces: Iterable[Piece], opening_ids: tuple[int, ...] = ()) -> Conversation:
        """The conversation as a prompt that begins with ``opening_ids``. Raises StoreError."""
        made = Conversation([Segment("glue", opening_ids)])
        joined, marks = _joined(pieces)
        texts = [index for index, piece in enumerate(joined) if isinstance(piece, str)]
        for index, piece in enumerate(joined):
            if isinstance(piece, TemplateText):
                made.runs.append(Segment("glue", tuple(self._template.control_ids(piece.text))))
            elif isinstance(piece, Passage):
                before = joined[index - 1] if index else ""
                if isinstance(before, str) and before.strip() and not before.endswith("\n"):
                    made.runs.append(self._glue("\n\n"))
                self._passage(piece, made)
            else:
                before_text = made.tokens
                self._text(piece, made, first=index == texts[0], last=index == texts[-1])
                for at, point in marks.get(index, ()):
                    inside = len(self._template.text_ids(piece[:at])) if at < len(piece) else made.tokens - before_text
                    made.cache_points.append(CacheBreak(before_text + inside, point.ttl_s))
                continue
            made.cache_points += [CacheBreak(made.tokens, point.ttl_s) for _, point in marks.get(index, ())]
        return made

    def _text(self, text: str, made: Conversation, *, first: bool, last: bool) -> None:
        cursor = 0
        for found in self._known.find(text) if self._known and self._find else ():
            self._gap(text[cursor : found.start], made, first=first and not cursor, last=False)
            made.runs += self._cut(found.segment, text[found.start : found.end]) if found.cut else [found.segment]
            if not self._has(found.segment):  # evicted, or lost
                made.lost.append(_text_of(found.segment, found.text))
            cursor = found.end
        self._gap(text[cursor:], made, first=first and not cursor, last=last)

    def _gap(self, text: str, made: Conversation, *, first: bool, last: bool) -> None:
        if not text:
            return
        made.runs.append(self._glue(text))
        found = [text[start:end] for start, end in blocks(text)]
        made.rest += found[first : len(found) - last]

    def _passage(self, passage: Passage, made: Conversation) -> None:
        """A passage as one chunk: with its title line, as documents are indexed, or its text alone."""
        source = Source(passage.document, passage.chunk, passage.score, passage.text, passage.title)
        whole, bare = chunk_text(passage.title, "", passage.text), passage.text.strip()
        title_line = whole[: whole.index(bare)] if passage.title else ""
        as_indexed, known = self._chunk(whole, source)
        if self._has(as_indexed):
            made.runs.append(as_indexed)
            return
        alone, alone_known = self._chunk(bare, source)
        if self._has(alone) or not (title_line or known):
            made.runs += [self._glue(title_line), alone, self._glue("\n\n")]
            if not self._has(alone):
                self._miss(alone, bare, alone_known, made)
        else:
            made.runs.append(as_indexed)
            self._miss(as_indexed, whole, known, made)

    def _miss(self, chunk: Segment, text: str, known: bool, made: Conversation) -> None:
        if known:
            made.lost.append(_text_of(chunk, text))
        else:
            made.chunks.append(text)

    def _cut(self, whole: Segment, text: str) -> list[Segment]:
        """The chunk that begins with ``text`` and goes on with white space, as ``text`` alone."""
        token_ids = tuple(self._template.text_ids(text))
        pairs = enumerate(zip(token_ids, whole.token_ids, strict=False))
        # A tokenizer may join the last characters and the white space behind them: these are glue then.
        shared = next((at for at, (own, other) in pairs if own != other), min(len(token_ids), len(whole)))
        chunk = replace(whole, token_ids=token_ids[:shared], entry_ids=whole.token_ids)
        return [chunk, Segment("glue", token_ids[shared:])]

    def _has(self, chunk: Segment) -> bool:
        return chunk.key is not None and self._store.contains(chunk.key)

    def _chunk(self, text: str, source: Source) -> tuple[Segment, bool]:
        """The text as a chunk, and whether it is known."""
        known = self._known.chunk(text) if self._known else None
        if known is not None:
            return replace(known, source=source), True
        token_ids = tuple(self._template.text_ids(text))
        key = self._engine.chunk_key(self._namespace, token_ids, self._store.codec.name)
        return Segment("chunk", token_ids, key, source), False

    def _glue(self, text: str) -> Segment:
        return Segment("glue", tuple(self._template.text_ids(text)))


def _text_of(chunk: Segment, text: str) -> Text:
    return Text(text, chunk.token_ids, chunk.key or "")


def _joined(pieces: Iterable[Piece]) -> tuple[list[Shown], dict[int, list[tuple[int, CachePoint]]]]:
    """The pieces with neighbouring text in one, and the cache points: by piece, behind so many characters of it.

    A cache point is no border: text has the same tokens with and without one.
    """
    joined: list[Shown] = []
    marks: dict[int, list[tuple[int, CachePoint]]] = {}
    for piece in pieces:
        before = joined[-1] if joined else ""
        if isinstance(piece, CachePoint):
            if joined:
                at = len(before) if isinstance(before, str) else 0
                marks.setdefault(len(joined) - 1, []).append((at, piece))
        elif isinstance(piece, str) and isinstance(before, str) and joined:
            joined[-1] = before + piece
        else:
            joined.append(piece)
    return joined, marks
