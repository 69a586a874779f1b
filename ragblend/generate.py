"""Decoding on a filled canvas, inside transformers' own generate.

generate prepares the logits processors and stopping criteria; the loop below only feeds them, so
that the first token comes from the blend's logits and nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from tokenizers.decoders import DecodeStream
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList

from ragblend.blend.blender import Blended
from ragblend.config import GenerationSettings
from ragblend.models.adapter import DecoderAdapter
from ragblend.models.steps import steps_on


def generate_ids(
    adapter: DecoderAdapter,
    blended: Blended,
    prompt_ids: Tensor,
    settings: GenerationSettings,
    grammar: LogitsProcessor | None = None,
) -> Iterator[int]:
    """Yield the answer's token ids one by one, the end-of-sequence token included if it comes.

    prompt_ids: [T] int64, what the canvas holds. The canvas grows by one position a step.
    """

    def decode(
        _: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        **__: Any,
    ) -> Iterator[int]:
        return _steps(adapter, blended, input_ids, logits_processor, stopping_criteria, settings)

    steps: Iterator[int] = adapter.model.generate(
        prompt_ids[None],
        attention_mask=torch.ones_like(prompt_ids)[None],
        generation_config=_generation_config(adapter.model, settings),
        logits_processor=LogitsProcessorList([grammar] if grammar else []),
        custom_generate=decode,
        **adapter.decode_arguments(blended.canvas),
    )
    return steps


def _steps(
    adapter: DecoderAdapter,
    blended: Blended,
    ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    settings: GenerationSettings,
) -> Iterator[int]:
    generator = torch.Generator(device=ids.device)
    if settings.seed is None:
        generator.seed()
    else:
        generator.manual_seed(settings.seed)
    logits, step = blended.logits[None], steps_on(adapter, blended.canvas, settings.cuda_graph)
    while True:
        with torch.inference_mode():
            scores = logits_processor(ids, logits.float())  # type: ignore[arg-type]
            if settings.temperature > 0:
                chosen = torch.multinomial(scores.softmax(dim=-1), 1, generator=generator)
            else:
                chosen = scores.argmax(dim=-1, keepdim=True)
            ids = torch.cat([ids, chosen], dim=1)
            finished = bool(stopping_criteria(ids, None).all())
        yield int(chosen)
        if finished:
            return
        logits = step(chosen)


def _generation_config(model: PreTrainedModel, settings: GenerationSettings) -> GenerationConfig:
    """The model's own special tokens with the request's settings; sampling only where asked for."""
    own = model.generation_config
    sampling: dict[str, Any] = {"do_sample": False}
    if settings.temperature > 0:
        sampling = {
            "do_sample": True,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "top_k": settings.top_k,
        }
    return GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=settings.max_tokens,
        repetition_penalty=settings.repetition_penalty,
        eos_token_id=own.eos_token_id,
        bos_token_id=own.bos_token_id,
        pad_token_id=own.pad_token_id if own.pad_token_id is not None else next(iter(end_token_ids(model)), None),
        use_cache=True,
        **sampling,
    )


def end_token_ids(model: PreTrainedModel) -> list[int]:
    """The tokens that end an answer."""
    ends = model.generation_config.eos_token_id
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


class AnswerText:
    """Text of an answer as its tokens come, cut before the first stop string.

    Text that may be the beginning of a stop string is held back until it is clear.
    """

    def __init__(self, tokenizer: Any, stop: tuple[str, ...]) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._stop = stop
        self._held = ""
        self.stopped = False

    def push(self, token_id: int) -> str:
        """Text that became certain with this token. Sets ``stopped`` at a stop string."""
        self._held += self._stream.step(self._tokenizer.backend_tokenizer, token_id) or ""
        ends = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        if ends:
            self.stopped = True
            return self._release(min(ends))
        return self._release(len(self._held) - self._undecided())

    def finish(self) -> str:
        """What was held back, once no more tokens come."""
        return "" if self.stopped else self._release(len(self._held))

    def _undecided(self) -> int:
        """Length of the longest tail that begins a stop string."""
        longest = 0
        for stop in self._stop:
            for length in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:length]):
                    longest = length
                    break
        return longest

    def _release(self, count: int) -> str:
        piece, self._held = self._held[:count], self._held[count:]
        return piece
