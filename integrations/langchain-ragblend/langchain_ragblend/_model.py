"""What the chat model and the completion model have in common: engine, library and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Self

from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from ragblend import Answer, BlendSettings, Engine, GenerationSettings, Library, ReuseSettings
from ragblend.errors import ConfigError

Learn = Literal["off", "passages", "paragraphs"]

_GENERATION = ("max_tokens", "temperature", "top_p", "top_k", "repetition_penalty", "seed")
_BLEND = ("policy", "ratio", "overflow")


class RagBlendModel(BaseModel):
    """Fields of ``ChatRagBlend`` and ``RagBlendLLM``.

    The model and the library are loaded and opened when the object is made, and then are in ``engine`` and
    ``library``. Every setting of generation and blending can also be given for one call.
    """

    model: str | None = None
    """A transformers id, a folder or a ``.gguf`` file; None for the embedded model."""
    device: str = "auto"
    dtype: str = "auto"
    engine: Engine | None = Field(default=None, exclude=True)
    """A loaded model, instead of ``model``, ``device`` and ``dtype``."""
    library: Library | str | Path | None = Field(default=None, exclude=True)
    """Where KV is kept: the folder of a library, an open Library, or None for a temporary folder."""
    namespace: str = "default"
    learn: Learn | None = None
    """What is precomputed in the background for the next time; ``paragraphs`` unless an open library says otherwise."""

    cached_content: str | None = None
    """A named cache (``engine.caches.create``) that prompts go on from, by its name or id."""
    policy: str | None = None
    ratio: float | Literal["auto"] | None = None
    overflow: Literal["refuse", "drop"] | None = None
    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: list[str] | None = None
    timeout: float | None = None
    """Seconds until an unfinished answer ends in TimeoutError."""
    streaming: bool = False

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", protected_namespaces=())

    _owned: Library | None = PrivateAttr(default=None)
    _kept_in: str | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        if isinstance(self.library, Library):
            self._take(self.library)
        else:
            engine = self.engine or Engine(self.model, device=self.device, dtype=self.dtype)
            self._kept_in = None if self.library is None else str(self.library)
            reuse = ReuseSettings(learn=self.learn or "paragraphs")
            self.engine = engine
            self._owned = Library.open(self.library, engine=engine, namespace=self.namespace, reuse=reuse)
            self.library = self._owned
        self._resolve()

    def _take(self, library: Library) -> None:
        """Use a library that somebody else opened, and closes."""
        if not isinstance(library.engine, Engine):
            raise ConfigError(f"{library.folder} was opened without a model: open it with engine=Engine(...)")
        if self.engine is not None and self.engine is not library.engine:
            raise ConfigError("the library was opened with another engine: give the library alone")
        if self.namespace not in ("default", library.namespace):
            raise ConfigError(f"the library is open in namespace {library.namespace!r}, not {self.namespace!r}")
        if self.learn not in (None, library.reuse.learn):
            raise ConfigError(f"the library was opened to learn {library.reuse.learn!r}: give learn where it is opened")
        self.engine = library.engine
        self._kept_in = None if library.temporary else str(library.folder)

    def _resolve(self) -> None:
        engine = self._engine
        if self.model is None:
            self.model = engine.reference or None
        elif self.model not in (engine.name, engine.reference) and Path(self.model).resolve() != Path(engine.reference):
            raise ConfigError(f"the engine is {engine.name}, not {self.model}: give one of model and engine")
        self.namespace = self._library.namespace
        self.learn = self._library.reuse.learn
        self.policy = engine.blend.policy if self.policy is None else self.policy
        self.ratio = engine.blend.ratio if self.ratio is None else self.ratio
        self.overflow = engine.blend.overflow if self.overflow is None else self.overflow
        # Bad values are found here, not at the first question.
        engine.require_policy(self.policy)
        BlendSettings(self.policy, self.ratio, self.overflow)
        self._settings({}, None)

    def close(self) -> None:
        """Close the library if this object opened it; a temporary one is deleted."""
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _engine(self) -> Engine:
        assert self.engine is not None
        return self.engine

    @property
    def _library(self) -> Library:
        assert isinstance(self.library, Library)
        return self.library

    @property
    def lc_attributes(self) -> dict[str, Any]:
        """The library's folder, which a copy opens again."""
        return {} if self._kept_in is None else {"library": self._kept_in}

    @property
    def _identifying_params(self) -> dict[str, Any]:
        names = ("model", "namespace", "cached_content", *_BLEND, *_GENERATION, "stop")
        return {**{name: getattr(self, name) for name in names}, "library": self._kept_in}

    def _settings(self, kwargs: Mapping[str, Any], stop: Sequence[str] | None, grammar: str | None = None) -> Settings:
        """This call's settings. Raises ConfigError for a bad value or an argument that there is not."""
        names = (*_GENERATION, *_BLEND, "cached_content", "timeout")
        known = {*names, "stream"}
        if unknown := sorted(set(kwargs) - known):
            raise ConfigError(f"unknown arguments: {', '.join(unknown)}; a call takes {', '.join(sorted(known))}")
        given = {name: kwargs.get(name, getattr(self, name)) for name in names}
        ends = tuple(self.stop or ()) if stop is None else tuple(stop)
        generation = GenerationSettings(**{name: given[name] for name in _GENERATION}, stop=ends, grammar=grammar)
        blend = {name: given[name] for name in _BLEND}
        return Settings({**blend, "cache": given["cached_content"], "generation": generation}, given["timeout"])


class Settings:
    """arguments: of ``Library.chat`` and ``complete``. timeout: seconds, or None."""

    def __init__(self, arguments: dict[str, Any], timeout: float | None) -> None:
        self.arguments = arguments
        self.timeout = timeout


def metadata_of(answer: Answer) -> dict[str, Any]:
    """What an answer tells beside its text, for ``response_metadata`` and ``generation_info``."""
    sources = [{"document": each.document, "chunk": each.chunk, "title": each.title} for each in answer.sources]
    return {
        "model_name": answer.model,
        "model_provider": "ragblend",
        "finish_reason": answer.finish_reason,
        "policy": answer.policy,
        "ratio": answer.ratio,
        "hits": answer.hits,
        "misses": answer.misses,
        "matched_tokens": answer.matched_tokens,
        "prefix_tokens": answer.prefix_tokens,
        "cache_points": [asdict(point) for point in answer.cache_points],
        "learning": answer.learning,
        "computed_tokens": answer.usage.computed_tokens,
        "recomputed_tokens": answer.usage.recomputed_tokens,
        "timings": asdict(answer.timings),
        "sources": sources,
        "dropped": [source.document for source in answer.dropped],
    }


def usage_of(answer: Answer) -> UsageMetadata:
    """Token counts in LangChain's form, in which no token of the prompt counts twice.

    cache_read: those whose KV was reused as it was kept. cache_creation: computed ones that are kept from now on.
    """
    usage = answer.usage
    return UsageMetadata(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        input_token_details=InputTokenDetails(
            cache_read=usage.cached_tokens - usage.recomputed_tokens, cache_creation=usage.cache_creation_tokens
        ),
    )
