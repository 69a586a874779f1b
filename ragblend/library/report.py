"""What the library's operations return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ragblend.library.embedding import Vectors
from ragblend.prompt import Segment, chunk_text
from ragblend.results import Source


@dataclass(frozen=True, slots=True)
class Skipped:
    """A path that was left out, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What ``Library.add`` did, and what the namespace then holds.

    documents, chunks, tokens, kv_bytes: totals of the namespace after the run.
    indexed, unchanged, replaced: files of this run; with ``skipped`` they add up to all that were found.
    removed: documents whose file is gone from an indexed folder.
    """

    documents: int
    chunks: int
    tokens: int
    kv_bytes: int
    indexed: int
    unchanged: int
    replaced: int
    removed: int
    skipped: tuple[Skipped, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class PrecomputeReport:
    """What ``Library.precompute`` did: ``texts = computed + unchanged + len(skipped)``.

    skipped: the first words of each text that got no KV, and why. tokens: of the computed texts.
    kv_bytes: of the whole namespace.
    """

    texts: int
    computed: int
    unchanged: int
    skipped: tuple[Skipped, ...]
    tokens: int
    kv_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LearningReport:
    """What was precomputed in the background since the library was opened, in texts.

    learned: for which there is KV now. dropped: for which there was no room in the queue, or another
    process kept writing. failed: after an error, of which ``error`` is the last one.
    """

    learned: int = 0
    dropped: int = 0
    failed: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """What a namespace's KV takes, in bytes, and what it may take (None: no limit).

    codec: what chunk KV is kept as.
    disk_bytes: files of chunks and kept prefixes, with what is set aside and left over; total_disk_bytes: of all
    namespaces.
    ttl_s: seconds after its last use at which an entry expires. evicted: entries that were dropped to keep a limit, and
    are computed when they are needed. remote: the remote tier's URL, empty for none. pending: entries that it has not
    been told of.
    """

    codec: str
    disk_bytes: int
    disk_budget: int | None
    total_disk_bytes: int
    total_disk_budget: int | None
    free_space_floor: int
    ttl_s: float | None
    evicted: int
    encrypted: bool
    remote: str
    pending: int


@dataclass(frozen=True, slots=True)
class LibraryInfo:
    """What one namespace of a library holds, and what the library was made with.

    model, model_reference (what to load it by) and embedder are empty until something has been indexed.
    unneeded_bytes: of ``kv_bytes``, what no chunk and no text needs: an interrupted run computed it, which indexing the
    same documents again finds, and ``gc`` deletes. prefix_bytes: of the prefix cache. created_at: seconds since the
    epoch. texts: those precomputed without a document. learning: of this process.
    """

    path: str
    namespace: str
    documents: int
    chunks: int
    tokens: int
    kv_bytes: int
    unneeded_bytes: int
    prefix_bytes: int
    model: str
    model_reference: str
    embedder: str
    chunk_tokens: int
    created_at: float
    texts: int
    learning: LearningReport
    store: StoreInfo


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The state of a namespace's chunk KV; entries are named by their keys.

    entries: distinct entries that chunks and texts need. checked: those of them that were read, all or a sample.
    missing: needed, but not in the store. damaged: there, but the bytes are not what was written.
    evicted: how many needed ones are not there because they were evicted; that is no fault.
    audited: sound entries that were computed again to compare. deviating: whose stored KV is not what came out.
    orphans: in the store, but needed by no chunk and no text (left by an interrupted run; ``gc`` deletes them).
    index_ok: whether the search index on disk is present and agrees with the catalogue.
    """

    entries: int
    checked: int
    missing: tuple[str, ...]
    damaged: tuple[str, ...]
    evicted: int
    audited: int
    deviating: tuple[str, ...]
    orphans: tuple[str, ...]
    index_ok: bool

    @property
    def ok(self) -> bool:
        """Whether nothing needs repair; orphans only waste space."""
        return not (self.missing or self.damaged or self.deviating) and self.index_ok


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What ``Library.repair`` did: entries (and their tokens) computed again, and the index rebuilt."""

    recomputed: int
    tokens: int
    index_rebuilt: bool


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """What ``Library.gc`` deleted."""

    entries: int
    files: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A found chunk, ready to be placed into a prompt. Scores are -1 to 1: the cosine of question and
    chunk, or, where the chunk is embedded in windows as well, its mean with the best window's.

    embedding: [dimensions], of length 1. metadata: of a text that a program gave (``document`` is its id);
    None for a chunk of a file.
    """

    segment: Segment
    source: Source = field(repr=False)
    embedding: Vectors = field(repr=False, compare=False)
    metadata: Mapping[str, Any] | None = None

    @property
    def score(self) -> float:
        return self.source.score

    @property
    def document(self) -> str:
        return self.source.document

    @property
    def text(self) -> str:
        return self.source.text

    @property
    def prompt_text(self) -> str:
        """The chunk as it stands in prompts, its title line included, without outer whitespace."""
        if self.metadata is not None:
            return self.source.text.strip()
        return chunk_text(self.source.title, self.source.heading, self.source.text).strip()
