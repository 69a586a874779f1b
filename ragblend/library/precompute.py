"""KV for texts without a document, exactly as they will stand in prompts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice

from ragblend.config import require
from ragblend.library.precomputed import PrecomputedTexts, Text
from ragblend.library.progress import IndexProgress
from ragblend.library.protocol import LibraryEngine
from ragblend.library.records import Records
from ragblend.library.report import PrecomputeReport, Skipped
from ragblend.library.sections import as_prefilled, prefill
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

    def run(self, texts: Iterable[str], progress: IndexProgress) -> PrecomputeReport:
        """Precompute what is not there yet, batch by batch; each finished text is durable."""
        require(not isinstance(texts, str), "give a list of texts, not one string")
        began = time.perf_counter()
        computed = unchanged = tokens = count = 0
        skipped: list[Skipped] = []
        stripped = iter(texts)
        progress.start(0)
        try:
            while batch := list(islice(stripped, _BATCH_TEXTS)):
                count += len(batch)
                wanted: dict[str, Text] = {}
                for given in batch:
                    require(isinstance(given, str), f"a text must be a string, got {type(given).__name__}")
                    text = self.prepare(given)
                    if isinstance(text, Skipped):
                        skipped.append(text)
                        progress.skipped(text.path, text.reason)
                    elif text.text in wanted or self.is_known(text):
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

    def is_known(self, text: Text) -> bool:
        return self.texts.has(text.text) and self.store.contains(text.entry_key)

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
        entries = {text.entry_key: text.token_ids for text in missing}
        behind = as_prefilled(self.records, self.engine, self.store, entries)  # a document's chunk that was lost
        kvs = prefill(self.engine, [behind[text.entry_key] for text in missing], cancelled)
        for text, kv in zip(missing, kvs, strict=True):
            with self.writing():
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
