"""transformers alone: full prefill of every prompt, or what a careful user adds: the last prompt's cache kept."""

from __future__ import annotations

import inspect
import time

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from ragblend.bench.compare.peers.protocol import PeerSettings, Reply, Run, joined, serve


class Transformers:
    """Greedy decoding by the model's own forward, without ``generate``, which would only cost time.

    With ``reuse`` the cache of the prompt before is cropped to what both prompts begin with.
    """

    def __init__(self, settings: PeerSettings) -> None:
        torch.set_num_threads(settings.threads)
        self._model = AutoModelForCausalLM.from_pretrained(
            settings.model,
            dtype=getattr(torch, settings.dtype),
            attn_implementation="sdpa",
            trust_remote_code=False,
            use_safetensors=True,
        )
        self._model.train(False)
        names = inspect.signature(self._model.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"
        ends = self._model.generation_config.eos_token_id
        self._ends = set(ends if isinstance(ends, list) else [ends])
        self._reuse = settings.reuse
        self._cache = self._empty()
        self._held: list[int] = []  # the ids whose KV the cache has
        self._prompt: list[int] = []
        self._first = torch.empty(0)

    def facts(self) -> dict[str, str]:
        return {"version": f"transformers {transformers.__version__}, torch {torch.__version__}", "attention": "sdpa"}

    def prepare(self, chunks: list[list[int]]) -> None:
        """Nothing: it knows no documents."""

    @torch.inference_mode()
    def answer(self, runs: list[Run], answer_tokens: int) -> Reply:
        self._prompt = joined(runs)
        began = time.perf_counter()
        reused = self._keep_common() if self._reuse else 0
        if not reused:
            self._cache = self._empty()
        logits = self._forward(self._prompt[reused:], 1)[-1]
        token = int(logits.argmax())
        first = time.perf_counter() - began
        self._first = logits
        answer = [token]
        while token not in self._ends and len(answer) < answer_tokens:
            token = int(self._forward([token], 1)[-1].argmax())
            answer.append(token)
        total = time.perf_counter() - began
        self._held = self._prompt + answer[:-1]
        return Reply(first, total, len(answer), reused, token_ids=answer)

    @torch.inference_mode()
    def step_logits(self, token_ids: list[int], path: str) -> bool:
        self._crop(len(self._prompt))
        steps = [self._first[None]]
        if len(token_ids) > 1:
            steps.append(self._forward(token_ids[:-1], len(token_ids) - 1))
        self._held = self._prompt + token_ids[:-1]
        np.save(path, torch.cat(steps).float().numpy())
        return True

    def _empty(self) -> DynamicCache:
        return DynamicCache(config=self._model.config)

    def _keep_common(self) -> int:
        """Crop the cache to the beginning that it shares with the prompt, whose last token is always computed."""
        most = min(len(self._held), len(self._prompt) - 1)
        common = next((at for at in range(most) if self._held[at] != self._prompt[at]), most)
        self._crop(common)
        return common

    def _crop(self, length: int) -> None:
        if surplus := len(self._held) - length:
            self._cache.crop(-surplus)
            self._held = self._held[:length]

    def _forward(self, token_ids: list[int], logits: int) -> Tensor:
        output = self._model(
            input_ids=torch.tensor([token_ids]),
            use_cache=True,
            logits_to_keep=logits,
            **{self._cache_argument: self._cache},
        )
        result: Tensor = output.logits[0]
        return result


if __name__ == "__main__":
    serve(Transformers)
