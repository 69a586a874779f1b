"""What a request returns. One source of truth for the command line's JSON and the Python API."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request.

    prompt_tokens: length of the prompt, T.
    cached_tokens: prompt tokens whose KV came from the store, the anchor or the prefix cache.
    recomputed_tokens: of those, the ones that the policy recomputed.
    computed_tokens: rows computed in this request: all others (the suffix, glue, chunks that are not in the store, a
        prefix that was not kept) and recomputed_tokens. So
        ``prompt_tokens = cached_tokens - recomputed_tokens + computed_tokens``.
    cache_creation_tokens: computed prompt tokens that are kept for later prompts; of them,
        cache_creation_5m_tokens and cache_creation_1h_tokens at cache points of that time to live.
    completion_tokens: generated tokens.
    """

    prompt_tokens: int
    cached_tokens: int
    recomputed_tokens: int
    computed_tokens: int
    cache_creation_tokens: int
    completion_tokens: int
    cache_creation_5m_tokens: int = 0
    cache_creation_1h_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CachePointUse:
    """What became of a cache point behind ``tokens`` tokens.

    read_tokens: of them, those whose KV was there. kept: whether it outlives its last use by ttl_s
    seconds now; if not, ``reason`` says why.
    """

    tokens: int
    ttl_s: float
    read_tokens: int
    kept: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds. ``ttft_s`` runs from when the first piece is asked for to the first generated token.

    retrieve_s: searching, or finding known texts in a prompt; total_s has it, ttft_s leaves it out.
    load_s: loading chunk KV, or waiting for that. hidden_load_s: loading that nobody waited for, while something was
    computed; loading took both together. select_s, recompute_s: computing.
    """

    retrieve_s: float
    load_s: float
    select_s: float
    recompute_s: float
    ttft_s: float
    total_s: float
    hidden_load_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Source:
    """A chunk that the answer was asked from. ``chunk`` counts from 0 within the document."""

    document: str
    chunk: int
    score: float
    text: str
    title: str = ""
    heading: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer. ``dropped`` lists the sources left out because the context was full.

    sources: best first; those of equal scores as they stand in the prompt.
    ratio: the one that was used, also where ``auto`` was asked for.
    hits: chunks whose KV came from the store or the prefix cache. misses: chunks that were looked up and not there.
    matched_tokens: prompt tokens in chunks that the store has, whether or not the policy reuses them.
    prefix_tokens: prompt tokens whose KV the prefix cache had. cache_points: what became of each.
    learning: tokens of this prompt that wait to be precomputed for the next time.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    sources: tuple[Source, ...]
    usage: Usage
    timings: Timings
    policy: str
    ratio: float
    model: str
    dropped: tuple[Source, ...] = field(default=())
    hits: int = 0
    misses: int = 0
    matched_tokens: int = 0
    learning: int = 0
    prefix_tokens: int = 0
    cache_points: tuple[CachePointUse, ...] = ()
