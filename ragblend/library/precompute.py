"""KV for texts without a document, exactly as they will stand in prompts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import islice

from ragblend.config import require
from ragblend.library.precomputed import PrecomputedTexts, Text
from ragblend.library.progress import IndexProgress
from ragblend.library.protocol import LibraryEngine
from ragblend.library.records import Records
from ragblend.library.report import PrecomputeReport, Skipped
from ragblend.library.sections import Pieces, Wanted, as_prefilled, key_of, prefill
from ragblend.prompt import Passage
from ragblend.prompt.matching import BLOCK
from ragblend.store.disk import DiskStore

# A chunk of fewer tokens costs more to look up and place than to compute.
LEAST_TOKENS = 8
_BATCH_TEXTS = 32
_NAME_CHARACTERS = 60


@dataclass(frozen=True)
class Precomputer:
    """Gives texts KV.

    writing: holds the library's writer lock, for as long as one text is written. bind: makes the library
    the engine's, or raises LibraryMismatchError. Several threads and processes may precompute at once:
    computing needs no lock.
    """

    records: Records
    texts: PrecomputedTexts
    store: DiskStore
    engine: LibraryEngine
    writing: Callable[[], AbstractContextManager[None]]
    bind: Callable[[], None]

    def run(self, texts: Iterable[str | Passage], progress: IndexProgress) -> PrecomputeReport:
        """Precompute what is not there yet, batch by batch; each finished text is durable."""
        require(not isinstance(texts, str), "give a list of texts, not one string")
        began = time.perf_counter()
        computed = unchanged = tokens = count = 0
        skipped: list[Skipped] = []
        remaining, pieces = iter(texts), Pieces(self.engine)
        progress.start(0)
        try:
            while batch := list(islice(remaining, _BATCH_TEXTS)):
                count += len(batch)
                wanted: dict[str, Text] = {}
                for given in batch:
                    text, known = self._piece(given, pieces)
                    if isinstance(text, Skipped):
                        skipped.append(text)
                        progress.skipped(text.path, text.reason)
                    elif text.text in wanted or (known and self.store.contains(text.entry_key)):
                        unchanged += 1
                    else:
                        wanted[text.text] = text
                unchanged += len(wanted)
                for text in self.compute(list(wanted.values())):
                    computed, unchanged = computed + 1, unchanged - 1
                    tokens += len(text.token_ids)
                    progress.chunk(len(text.token_ids))
        finally:
            progress.finish()
        return PrecomputeReport(
            texts=count,
            computed=computed,
            unchanged=unchanged,
            skipped=tuple(skipped),
            tokens=tokens,
            kv_bytes=self.store.nbytes(),
            seconds=time.perf_counter() - began,
        )

    def prepare(self, given: str, *, strip: bool = True) -> Text | Skipped:
        """The text without its outer whitespace, in tokens; or why it is not worth a chunk, or cannot be one."""
        text = given.strip() if strip else given
        reason = ""
        if not text:
            reason = "empty"
        elif len(text) < BLOCK:
            reason = f"{len(text)} characters: texts of fewer than {BLOCK} are computed in place"
        elif not _is_unicode(text):
            reason = "not valid Unicode (a lone surrogate)"
        else:
            token_ids = tuple(self.engine.template.text_ids(text))
            room = self.engine.chunk_room
            if LEAST_TOKENS <= len(token_ids) <= room:
                key = self.engine.chunk_key(self.store.key_namespace, token_ids, self.store.codec.name)
                return Text(text, token_ids, key)
            few = f"texts of fewer than {LEAST_TOKENS} are computed in place"
            bound = few if len(token_ids) < LEAST_TOKENS else f"the context has room for {room:,}"
            reason = f"{len(token_ids):,} tokens: {bound}"
        return Skipped(_name(text), reason)

    def _piece(self, given: str | Passage, pieces: Pieces) -> tuple[Text | Skipped, bool]:
        """A text with what it is prefilled behind, and whether it is known.

        A known one stands behind what it stood behind before, others behind the pieces before them.
        """
        require(isinstance(given, str | Passage), f"a text must be a string, or a Passage, got {type(given).__name__}")
        shown, document = (given, "") if isinstance(given, str) else (given.text, given.document)
        named = isinstance(document, str)
        require(named, f"a passage's document must be named by a string, got {type(document).__name__}")
        text = self.prepare(shown)
        if isinstance(text, Skipped):
            if document and _is_unicode(shown):  # no chunk of its own, but the next pieces stand behind it
                pieces.next(self.engine.template.bare_ids(shown), document)
            return text, False
        wanted = pieces.next(text.token_ids, document)
        if known := self.texts.key_of(text.text):
            return replace(text, entry_key=known), True
        key = key_of(wanted, self.engine, self.store)
        return replace(text, entry_key=key, context_ids=wanted.context_ids), False

    def compute(
        self, wanted: Sequence[Text], cancelled: Callable[[], bool] | None = None, *, learned: bool = False
    ) -> Iterator[Text]:
        """Make texts known; yield each whose KV had to be computed, when it is durable.

        learned: nobody asked for it, so a text whose entry somebody needs already only gets its KV. Raises
        GenerationCancelled, StoreError.
        """
        missing = []
        for text in wanted:
            with self.writing():
                if self.store.contains(text.entry_key):
                    self._add(text, learned)
                else:
                    missing.append(text)
        entries = {text.entry_key: text.token_ids for text in missing if not text.context_ids}
        behind = as_prefilled(self.records, self.engine, self.store, entries)  # what was known and lost
        behind |= {text.entry_key: Wanted(text.token_ids, text.context_ids) for text in missing if text.context_ids}
        kvs = prefill(self.engine, [behind[text.entry_key] for text in missing], cancelled)
        for text, kv in zip(missing, kvs, strict=True):
            with self.writing():
                if not learned and self._is_known(text):  # through somebody else meanwhile, behind something else even
                    continue
                entry = self.store.write_blob(text.entry_key, kv)
                with self.records.catalogue.transaction():
                    self.store.record([entry])
                    self._add(text, learned)
            yield text

    def _add(self, text: Text, learned: bool) -> None:
        with self.records.catalogue.transaction():
            self.bind()
            if not learned or self.records.unneeded([text.entry_key]):
                self.texts.add(text)
                self.records.contexts.put(text.entry_key, text.context_ids)

    def _is_known(self, text: Text) -> bool:
        known = self.texts.key_of(text.text)
        return known is not None and self.store.contains(known)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name(text: str) -> str:
    """The first words of a text, by which a report names it."""
    line = " ".join(text[: 2 * _NAME_CHARACTERS].split())
    shown = line if len(line) <= _NAME_CHARACTERS else f"{line[: _NAME_CHARACTERS - 1]}…"
    return shown.encode("utf-8", "replace").decode()
