"""ragblend: chunks are prefilled once into a store on the disk, and prompts' beginnings are kept in memory."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from ragblend import __version__
from ragblend.bench.compare.peers.protocol import PeerSettings, Reply, Run, serve
from ragblend.bench.fidelity import Continuations
from ragblend.blend.blender import Blended, blend
from ragblend.blend.policies import policy_named
from ragblend.config import DEFAULT_NAMESPACE, GenerationSettings
from ragblend.engine import Engine
from ragblend.generate import generate_ids
from ragblend.prefix.request import PrefixRequest
from ragblend.prompt import Prompt, Segment
from ragblend.store.catalogue import Catalogue
from ragblend.store.disk import DiskStore


class Ragblend:
    """What ``Engine.generate`` does, step by step, because the logits are wanted too."""

    def __init__(self, settings: PeerSettings) -> None:
        torch.set_num_threads(settings.threads)
        self._engine = Engine(settings.model, device="cpu", dtype=settings.dtype)
        self._policy = policy_named(settings.policy)
        self._ratio = settings.ratio
        self._folder = Path(settings.folder)
        self._blended: Blended | None = None
        self._prompt_ids: tuple[int, ...] = ()
        self.prepare([])

    def facts(self) -> dict[str, str]:
        return {
            "version": f"ragblend {__version__}, torch {torch.__version__}",
            "policy": f"{self._policy.name}, ratio {self._ratio:g}",
        }

    def prepare(self, chunks: list[list[int]]) -> None:
        """Prefill the chunks into a new store."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        self._store = DiskStore(folder, Catalogue(folder / "catalogue.db"))
        ids = [tuple(chunk) for chunk in chunks]
        for chunk, kv in zip(ids, self._engine.prefill(ids), strict=True):
            self._store.put(self._key(chunk), kv)

    def answer(self, runs: list[Run], answer_tokens: int) -> Reply:
        self._blended = None
        prompt = Prompt(tuple(self._segment(kind, tuple(ids)) for kind, ids in runs))
        began = time.perf_counter()
        approximate = self._policy.name if self._policy.reuse == "all" else None
        prefix = PrefixRequest(self._engine.caches.own(DEFAULT_NAMESPACE).prefixes, prompt, approximate, self._ratio)
        try:
            blended = blend(
                self._engine.adapter,
                self._engine.anchor,
                prompt,
                policy=self._policy,
                ratio=self._ratio,
                store=self._store,
                room=answer_tokens,
                prefix=prefix,
            )
            answer: list[int] = []
            first = 0.0
            prompt_ids = torch.tensor(prompt.token_ids)
            generation = GenerationSettings(max_tokens=answer_tokens)
            for token in generate_ids(self._engine.adapter, blended, prompt_ids, generation):
                first = first or time.perf_counter() - began
                answer.append(token)
            total = time.perf_counter() - began
            held = (*prompt.token_ids, *answer)[: blended.canvas.get_seq_length()]
            prefix.keep(blended.canvas.take, held, blended.approximate, blended.computed_between, len(answer))
        finally:
            prefix.close()
        blended.canvas.set_length(blended.prompt_tokens)
        self._blended, self._prompt_ids = blended, prompt.token_ids
        return Reply(first, total, len(answer), blended.cached - blended.recomputed, token_ids=answer)

    def step_logits(self, token_ids: list[int], path: str) -> bool:
        if self._blended is None:
            return False
        continuations = Continuations(self._engine.adapter, self._blended, self._prompt_ids)
        np.save(path, continuations.step_logits(token_ids).float().numpy())
        return True

    def _segment(self, kind: str, token_ids: tuple[int, ...]) -> Segment:
        match kind:
            case "chunk":
                return Segment("chunk", token_ids, self._key(token_ids))
            case "prefix" | "glue" | "suffix":
                return Segment(kind, token_ids)
            case _:
                raise ValueError(f"unknown kind of segment {kind!r}")

    def _key(self, token_ids: tuple[int, ...]) -> str:
        return self._engine.chunk_key(DEFAULT_NAMESPACE, token_ids)


if __name__ == "__main__":
    serve(Ragblend)
