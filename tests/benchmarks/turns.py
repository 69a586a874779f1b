"""How far a conversation over blended documents drifts from full prefill, turn by turn.

    python tests/benchmarks/turns.py --conversations 6 --turns 5

Each conversation asks about one set of the example handbook's passages, turn after turn. All ways answer along full
prefill's own greedy answers, so that they see the same conversation. Printed for each way and turn: the mean KL of full
prefill to it in nats per token along full prefill's answer, the share of tokens on whose best candidate both agree, and
the rows computed. The ways are those of `PrefixSettings.approximate`.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from typing import Literal

import torch

from ragblend import Engine, MemoryStore, PrefixSettings
from ragblend.bench import fidelity
from ragblend.bench.data import handbook_texts
from ragblend.bench.fidelity import Continuations
from ragblend.blend.blender import Blended, blend
from ragblend.blend.policies import policy_named
from ragblend.prefix.cache import PrefixCache
from ragblend.prefix.request import PrefixRequest
from ragblend.prompt import Prompt, Segment

QUESTIONS = [
    "What is this about?",
    "Which numbers are given?",
    "What should one never do?",
    "Who is responsible?",
    "What happens if it is done too late?",
    "Sum it up in one sentence.",
]
WAYS: tuple[Literal["reuse", "refine", "forbid"], ...] = ("reuse", "refine", "forbid")

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model")
parser.add_argument("--conversations", type=int, default=6)
parser.add_argument("--turns", type=int, default=5)
parser.add_argument("--passages", type=int, default=6, help="of 256 tokens, in each conversation")
parser.add_argument("--ratio", type=float, default=0.15)
parser.add_argument("--answer-tokens", type=int, default=24)
options = parser.parse_args()


def run(engine: Engine, prompt: Prompt, policy: str, store: MemoryStore, cache: PrefixCache | None) -> Blended:
    """Blend a turn, and leave it to the next one."""
    request = PrefixRequest(cache, prompt, policy, options.ratio) if cache else None
    try:
        blended = blend(
            engine.adapter,
            engine.anchor,
            prompt,
            policy=policy_named(policy),
            ratio=options.ratio,
            store=store,
            room=options.answer_tokens,
            prefix=request,
        )
        if request is not None:
            request.keep(blended.canvas.take, prompt.token_ids, blended.approximate, blended.computed_between, 0)
        return blended
    finally:
        if request is not None:
            request.close()


def main() -> None:
    engine = Engine(options.model)
    template = engine.template
    ids = [template.text_ids(text)[:256] for text in handbook_texts()]
    store = MemoryStore(4 << 30)
    found: dict[tuple[str, int], list[tuple[float, float, int]]] = defaultdict(list)
    for number in range(options.conversations):
        passages = [tuple(ids[(number * options.passages + at) % len(ids)]) for at in range(options.passages)]
        chunks = [Segment("chunk", each, engine.chunk_key("turns", each)) for each in passages]
        for chunk, kv in zip(chunks, engine.prefill(passages), strict=True):
            store.put(chunk.key or "", kv)
        caches = {
            way: PrefixCache(
                f"{number} {way}",
                engine.identity.digest(),
                PrefixSettings(approximate=way),
                engine.caches.clock,
                MemoryStore(1 << 30),
            )
            for way in WAYS
        }
        talk: list[Segment] = [Segment("prefix", template.prefix_ids), *chunks]
        for turn in range(options.turns):
            asked = template.build([], QUESTIONS[(number + turn) % len(QUESTIONS)]).segments[-1]
            prompt = Prompt((*talk, asked))
            full = Continuations(engine.adapter, run(engine, prompt, "full", store, None), prompt.token_ids)
            answer = full.greedy(options.answer_tokens)
            reference = full.step_logits(answer)
            for way, cache in caches.items():
                blended = run(engine, prompt, "query", store, cache)
                logits = Continuations(engine.adapter, blended, prompt.token_ids).step_logits(answer)
                agreement = fidelity.top1_agreement(reference, logits)
                found[way, turn].append((fidelity.mean_kl(reference, logits), agreement, blended.computed))
            talk += [Segment("glue", asked.token_ids), Segment("glue", tuple(answer))]
    print(f"{'way':8} {'turn':>4} {'KL to full':>11} {'same best':>10} {'rows computed':>14}")
    for (way, turn), rows in sorted(found.items()):
        kl, agreement, computed = (statistics.fmean(column) for column in zip(*rows, strict=True))
        print(f"{way:8} {turn + 1:4} {kl:11.4f} {agreement:10.1%} {computed:14,.0f}")


with torch.inference_mode():
    main()
