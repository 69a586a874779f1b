"""llama.cpp, through the prebuilt server in the package xllamacpp. Its prompt cache is on, as it is by default."""

from __future__ import annotations

import time
from typing import Any

import xllamacpp

from ragblend.bench.compare.peers.protocol import PeerSettings, Reply, Run, joined, serve


class LlamaCpp:
    """The server in this process, one slot. The prompt is given in ids, the answer comes back as text."""

    def __init__(self, settings: PeerSettings) -> None:
        parameters = xllamacpp.CommonParams()
        parameters.model.path = settings.gguf
        parameters.n_ctx = settings.context
        parameters.n_parallel = 1
        parameters.n_gpu_layers = 0
        parameters.cpuparams.n_threads = settings.threads
        parameters.cpuparams_batch.n_threads = settings.threads
        self._server = xllamacpp.Server(parameters)

    def facts(self) -> dict[str, str]:
        return {"version": f"xllamacpp {xllamacpp.__version__}", "build": " ".join(xllamacpp.get_system_info().split())}

    def prepare(self, chunks: list[list[int]]) -> None:
        """Nothing: prefixes are kept as prompts come."""

    def answer(self, runs: list[Run], answer_tokens: int) -> Reply:
        pieces: list[tuple[float, dict[str, Any]]] = []
        request = {
            "prompt": joined(runs),
            "n_predict": answer_tokens,
            "temperature": 0,
            "cache_prompt": True,
            "stream": True,
        }
        began = time.perf_counter()

        def collect(piece: dict[str, Any]) -> bool:
            pieces.append((time.perf_counter() - began, piece))
            return False  # go on

        self._server.handle_completions(request, collect)
        total = time.perf_counter() - began
        for _, piece in pieces:
            if "choices" not in piece:
                raise RuntimeError(str(piece.get("message", piece)))
        usage = pieces[-1][1]["usage"]
        return Reply(
            ttft_s=pieces[0][0],
            total_s=total,
            tokens=usage["completion_tokens"],
            reused_tokens=usage["prompt_tokens_details"]["cached_tokens"],
            text="".join(piece["choices"][0]["text"] for _, piece in pieces),
        )

    def step_logits(self, token_ids: list[int], path: str) -> bool:
        return False


if __name__ == "__main__":
    serve(LlamaCpp)
