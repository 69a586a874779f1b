"""The engine: a model that answers prompts by blending. Start reading here.

One question's way: ``Library.stream`` searches and builds a prompt; ``Engine.stream`` fits it into
the context; ``blend.blender.blend`` plans, places stored chunk KV on the canvas, lets the policy
select rows and computes them; ``generate.generate_ids`` decodes on the canvas; ``AnswerStream``
hands the text out and sums up usage and timings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from ragblend.answer import AnswerStream, StreamWatcher
from ragblend.blend.anchor import Anchor
from ragblend.blend.blender import blend as blend_prompt
from ragblend.blend.controller import Controller
from ragblend.blend.plan import fit_context
from ragblend.blend.policies import policy_named
from ragblend.blend.prefill import prefill_chunks
from ragblend.blend.profile import Profile, profile_of
from ragblend.blend.trust import require_trust
from ragblend.config import DEFAULT_NAMESPACE, BlendSettings, GenerationSettings, PrefixSettings, require
from ragblend.errors import ModelError
from ragblend.generate import end_token_ids
from ragblend.grammar import Grammars
from ragblend.kernels.implementation import Implementation
from ragblend.library.caches import Caches
from ragblend.models.adapter import DecoderAdapter
from ragblend.models.identity import adapter_digest, model_identity
from ragblend.models.load import LoadedModel, load_model
from ragblend.models.packed import pack_linears
from ragblend.prefix.cache import PrefixCache
from ragblend.prefix.names import NamedCache
from ragblend.prefix.request import PrefixRequest
from ragblend.prompt import DEFAULT_QUESTION, DEFAULT_SYSTEM, PREAMBLE, Prompt, PromptTemplate, Segment
from ragblend.prompt.segments import CacheBreak
from ragblend.results import Answer
from ragblend.store.base import ChunkKV, KVStore
from ragblend.store.key import ModelIdentity, entry_key


class Engine:
    """A model with its tokenizer, prompt template and blend settings. Safe to use from several threads.

    model: None for the embedded default, a folder, a ``.gguf`` file or a transformers id.
    device: ``auto``, ``cpu``, ``cuda``, ... dtype: ``auto``, ``float32``, ``bfloat16``, ``float16``.
    kernels: ``auto`` (Triton on a GPU that has it, else torch), ``triton``, ``torch`` or ``reference``.
    blend: the default policy and ratio. system, question: the wording of the prompt template.

    prefix: how KV of prompts' beginnings is kept (``caches``). clock: seconds since the epoch, by which what is
        kept expires.

    preamble: text that follows the prompt's beginning in the anchor, so that a chunk is prefilled as it
        stands in prompts: behind other documents. At most an eighth of the context is taken. "" makes
        the first chunk of a prompt exact, and the others less like full prefill.

    identity: content digests of the model, part of every entry's key. anchor: what every chunk is
    prefilled behind: the beginning of the template's prompts, then the preamble.

    Raises PathNotFoundError, ModelError, UnsupportedModelError (the gate), ConfigError,
    KernelUnavailableError (Triton is asked for and cannot run).
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
        kernels: Implementation = "auto",
        blend: BlendSettings | None = None,
        system: str = DEFAULT_SYSTEM,
        question: str = DEFAULT_QUESTION,
        preamble: str = PREAMBLE,
        prefix: PrefixSettings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        loaded = load_model(model, device, dtype)
        self._start(loaded, kernels, blend, system, question, preamble, prefix or PrefixSettings(), clock)
        pack_linears(loaded.model)  # not a model that was given: its owner may look at its weights

    @classmethod
    def from_model(
        cls,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "",
        kernels: Implementation = "auto",
        blend: BlendSettings | None = None,
        system: str = DEFAULT_SYSTEM,
        question: str = DEFAULT_QUESTION,
        preamble: str = PREAMBLE,
        prefix: PrefixSettings | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Engine:
        """An engine on a transformers model that is already in memory. The engine takes the model over."""
        engine = cls.__new__(cls)
        name = name or str(model.config.model_type)
        loaded = LoadedModel(model, tokenizer, name, name)
        engine._start(loaded, kernels, blend, system, question, preamble, prefix or PrefixSettings(), clock)
        return engine

    def _start(
        self,
        loaded: LoadedModel,
        kernels: Implementation,
        blend: BlendSettings | None,
        system: str,
        question: str,
        preamble: str,
        prefix: PrefixSettings,
        clock: Callable[[], float],
    ) -> None:
        if loaded.tokenizer is None:
            raise ModelError(f"{loaded.name}: the model has no tokenizer, so it cannot read text")
        self.name = loaded.name
        self.reference = loaded.reference
        self.tokenizer = loaded.tokenizer
        self.adapter = DecoderAdapter(loaded.model, kernels)
        self.template = PromptTemplate(loaded.tokenizer, system, question)
        self.blend = blend or BlendSettings()
        self.require_policy(self.blend.policy)
        self.identity: ModelIdentity = model_identity(loaded.model, loaded.tokenizer, self.adapter.rotary)
        require_trust(self.adapter, self.name, self.identity)
        preamble_ids = self.template.text_ids(preamble)[: self.context_length // 8]
        self.anchor = Anchor(self.adapter, self.template.prefix_ids, preamble_ids)
        self.caches = Caches(self, prefix, clock, self._fill)

    @property
    def device(self) -> torch.device:
        """Where the model computes, and its canvases are."""
        return self.adapter.device

    @property
    def anchor_ids(self) -> tuple[int, ...]:
        """Ids behind which every chunk is prefilled."""
        return self.anchor.token_ids

    @property
    def context_length(self) -> int:
        return self.adapter.context_length

    @property
    def chunk_room(self) -> int:
        """Most tokens of a chunk: what the context has left behind the anchor."""
        return self.context_length - len(self.anchor_ids)

    def require_policy(self, name: str) -> None:
        """Raise ConfigError if there is no selection policy of this name."""
        policy_named(name)

    @property
    def prefills_in_context(self) -> bool:
        """Whether a chunk of a document is prefilled behind what stands before it there.

        Not without a preamble: then chunks stand right behind the prompt's beginning, so that the first one of a
        prompt is exact.
        """
        return not self.anchor.in_prompts

    def chunk_key(
        self, namespace: str, token_ids: Sequence[int], codec: str = "raw", context_ids: Sequence[int] = ()
    ) -> str:
        """The store key of a chunk's KV under this model and template, kept in ``codec``.

        context_ids: what took the preamble's place when it was prefilled, if anything did.
        """
        before = self.anchor.before(tuple(context_ids))
        return entry_key(namespace, self.identity, before, token_ids, codec)

    @property
    def supports_tools(self) -> bool:
        """Whether the model's chat template shows tools to it."""
        return self.template.chat.supports_tools

    def count_tokens(self, text: str) -> int:
        """Number of tokens of untrusted text."""
        return len(self.template.text_ids(text))

    def prefill(
        self,
        chunks: Sequence[tuple[int, ...]],
        *,
        contexts: Sequence[tuple[int, ...]] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Iterator[ChunkKV]:
        """Chunk KV of each chunk's ids behind the anchor, in batches and in order.

        contexts: for each chunk the ids that take the preamble's place before it, if any do. cancelled: asked before
        each layer; when it says yes, GenerationCancelled is raised.
        """
        self._require_same_adapters()
        return prefill_chunks(self.adapter, self.anchor, chunks, contexts, cancelled=cancelled)

    def stream(
        self,
        prompt: Prompt,
        *,
        store: KVStore | None = None,
        blend: BlendSettings | None = None,
        generation: GenerationSettings | None = None,
        retrieve_s: float = 0.0,
        watcher: StreamWatcher | None = None,
        cache: NamedCache | str | None = None,
        prefixes: PrefixCache | Literal["off"] | None = None,
    ) -> AnswerStream:
        """Answer a prompt, text piece by text piece. Work begins with the first piece asked for.

        store: where the prompt's chunks are looked up. retrieve_s: what retrieval took, for the timings.
        watcher: is told when the stream begins and ends. cache: a named cache (``caches.create``), which stands before
        the prompt. prefixes: where the prompt's beginning is looked up and kept, None for this engine's own.
        Policy ``full`` reuses nothing and leaves nothing behind. Raises ContextOverflowError, ConfigError (unknown
        policy, bad grammar), CacheHandleError, ModelError (low-rank adapters switched meanwhile) at once.
        """
        self._require_same_adapters()
        blend = blend or self.blend
        generation = GenerationSettings() if generation is None else generation
        require(isinstance(blend, BlendSettings), f"blend must be BlendSettings, got {blend!r}")
        require(
            isinstance(generation, GenerationSettings), f"generation must be GenerationSettings, got {generation!r}"
        )
        policy = policy_named(blend.policy)
        if cache is not None:
            prompt, prefixes = self.caches.before(prompt, cache, prefixes)
        prompt, dropped = fit_context(prompt, generation.max_tokens, self.context_length, blend.overflow)
        prefix = None
        if policy.reuse != "nothing" and prefixes != "off":
            approximate = policy.name if policy.reuse == "all" else None
            home = prefixes or self.caches.own(DEFAULT_NAMESPACE).prefixes
            prefix = PrefixRequest(home, prompt, approximate, _ratio_name(blend))
        return AnswerStream(
            adapter=self.adapter,
            tokenizer=self.tokenizer,
            model_name=self.name,
            prompt=prompt,
            dropped=dropped,
            settings=blend,
            generation=generation,
            retrieve_s=retrieve_s,
            grammar=self._grammars.processor(generation.grammar) if generation.grammar else None,
            watcher=watcher,
            prefix=prefix,
            run_blend=lambda cancelled: blend_prompt(
                self.adapter,
                self.anchor,
                prompt,
                policy=policy,
                ratio=self._controller(blend.ratio_floor) if blend.ratio == "auto" else blend.ratio,
                store=store,
                room=generation.max_tokens,
                cancelled=cancelled,
                prefix=prefix,
            ),
        )

    def _require_same_adapters(self) -> None:
        """Whoever holds the model may switch its low-rank adapters, and nothing kept would belong to it then."""
        if adapter_digest(self.adapter.model) != self.identity.adapter:
            raise ModelError(
                f"the adapters of {self.name} were changed since the engine was made: switch them back, "
                "or make an engine of the model as it is now"
            )

    def _fill(self, cache: PrefixCache, token_ids: tuple[int, ...], ttl_s: float) -> int:
        """Compute and keep the beginning of prompts, exactly. Returns how many of its tokens are kept."""
        prompt = Prompt((Segment("suffix", token_ids),), (CacheBreak(len(token_ids), ttl_s),))
        prompt, _ = fit_context(prompt, 1, self.context_length, "refuse")
        request = PrefixRequest(cache, prompt, None, 1.0)
        try:
            blended = blend_prompt(
                self.adapter, self.anchor, prompt, policy=policy_named("prefix"), ratio=1.0, prefix=request
            )
            request.keep(blended.canvas.take, token_ids, (), blended.computed_between, completion_tokens=0)
        finally:
            request.close()
        cache.flush()
        return cache.along(token_ids).tokens

    @cached_property
    def _grammars(self) -> Grammars:
        config = self.adapter.model.config.get_text_config()
        return Grammars(self.tokenizer, end_token_ids(self.adapter.model), config.vocab_size)

    def _controller(self, floor: float) -> Controller:
        return Controller(floor, lambda: self._profile)

    @cached_property
    def _profile(self) -> Profile:
        return profile_of(self.adapter, self.identity)

    def generate(
        self,
        prompt: Prompt,
        *,
        store: KVStore | None = None,
        blend: BlendSettings | None = None,
        generation: GenerationSettings | None = None,
        retrieve_s: float = 0.0,
        cache: NamedCache | str | None = None,
        prefixes: PrefixCache | Literal["off"] | None = None,
    ) -> Answer:
        """Answer a prompt. Arguments and errors as ``stream``."""
        return self.stream(
            prompt,
            store=store,
            blend=blend,
            generation=generation,
            retrieve_s=retrieve_s,
            cache=cache,
            prefixes=prefixes,
        ).complete()


def _ratio_name(blend: BlendSettings) -> float | str:
    """What approximate KV is known by. With ``auto`` each request has another ratio; they share the floor."""
    return f"auto from {blend.ratio_floor:g}" if blend.ratio == "auto" else blend.ratio
