"""What swapping the LLM of an unmodified compact query engine brings, on a corpus with questions.

Runs the same VectorStoreIndex and the same ``as_query_engine(streaming=True)`` with

- ``RagBlend``, whose ingestion pipeline ends with ``PrecomputeKV`` (with ``--learn-only`` it does not, and only
  what an earlier question has read is reused);
- ``RagBlend`` at policy ``full``, whose answers the others are compared with;
- LlamaIndex's own ``HuggingFaceLLM`` (``pip install llama-index-llms-huggingface``) with the same weights, dtype
  and threads.

Time to first token is taken in the same place for all: from LlamaIndex's event that the LLM was called to its event of
the first piece of text. With --best-last a postprocessor turns the nodes round. Prints a row a question, a summary, and
a line for each of the three claims: reuse, time to first token, and answers equal to full prefill's; ``--json`` writes
rows and summary.

    python integrations/llama-index-llms-ragblend/benchmarks/compact_query_engine.py --limit 20 --threads 2
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from llama_index.core import Document, Settings, VectorStoreIndex
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.llms.huggingface import HuggingFaceLLM

from llama_index.embeddings.ragblend import RagBlendEmbedding
from llama_index.llms.ragblend import PrecomputeKV, RagBlend, ReuseLog
from ragblend import Engine
from ragblend.bench.metrics import contains_answer
from ragblend.models.load import load_model

ROOT = Path(__file__).parents[3]


class FirstTokens(BaseEventHandler):
    """Seconds from each call of the LLM to its first piece of text."""

    _called: datetime | None = PrivateAttr(default=None)
    _seconds: list[float] = PrivateAttr(default_factory=list)

    @classmethod
    def class_name(cls) -> str:
        return "FirstTokens"

    @property
    def seconds(self) -> list[float]:
        return self._seconds

    def handle(self, event: BaseEvent, **kwargs: Any) -> None:
        if event.class_name() == "LLMChatStartEvent":
            self._called = event.timestamp
        elif event.class_name() == "LLMChatInProgressEvent" and self._called is not None:
            self._seconds.append((event.timestamp - self._called).total_seconds())
            self._called = None


@dataclass(frozen=True)
class Row:
    """One question. Token counts are of the last of the LLM's calls; seconds add up over them."""

    question: str
    context_tokens: int
    reused: float
    hits: int
    ttft_s: float
    plain_ttft_s: float
    answer: str
    full_answer: str
    plain_answer: str
    expected: list[str]


class BestLast(BaseNodePostprocessor):
    """Nodes the other way round, so that the best one stands next to the question."""

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return nodes[::-1]


def ask(
    index: VectorStoreIndex, llm: Any, question: str, top_k: int, orders: Sequence[BestLast]
) -> tuple[str, float, list[dict[str, Any]], int]:
    """The answer, the time to first token, what was reused, and how many tokens of context there were."""
    first = FirstTokens()
    get_dispatcher().add_event_handler(first)
    try:
        with ReuseLog() as log:
            query_engine = index.as_query_engine(
                llm=llm, similarity_top_k=top_k, streaming=True, node_postprocessors=list(orders)
            )
            response = query_engine.query(question)
            answer = "".join(response.response_gen).strip()
    finally:
        get_dispatcher().event_handlers.remove(first)
    context = sum(len(Settings.tokenizer(node.get_content())) for node in response.source_nodes)
    return answer, sum(first.seconds), log.answers, context


def measure(arguments: argparse.Namespace, folder: Path) -> Iterator[Row]:
    engine = Engine(arguments.model, dtype=arguments.dtype)
    settings = {"max_tokens": arguments.max_tokens, "engine": engine}
    blend = RagBlend(library=folder / "learning", policy=arguments.policy, ratio=arguments.ratio, **settings)
    full = RagBlend(library=folder / "full", learn="off", policy="full", **settings)
    loaded = load_model(arguments.model, "auto", arguments.dtype)
    plain = HuggingFaceLLM(
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        context_window=engine.context_length,
        max_new_tokens=arguments.max_tokens,
        generate_kwargs={"do_sample": False},
        is_chat_model=True,
    )
    Settings.tokenizer = blend.tokenize
    paths = sorted(Path(arguments.documents).rglob("*.md"))
    documents = [Document(text=path.read_text(encoding="utf-8"), id_=path.name) for path in paths]
    transformations: list[Any] = [SentenceSplitter(chunk_size=arguments.chunk_size, chunk_overlap=0)]
    if not arguments.learn_only:
        transformations.append(PrecomputeKV(blend))
    index = VectorStoreIndex.from_documents(documents, transformations=transformations, embed_model=RagBlendEmbedding())
    orders = [BestLast()] if arguments.best_last else []
    lines = Path(arguments.questions).read_text(encoding="utf-8").splitlines()
    for line in lines[: arguments.limit]:
        data = json.loads(line)
        question = data["question"]
        answer, ttft, raws, context = ask(index, blend, question, arguments.top_k, orders)
        blend.library.wait()
        full_answer, *_ = ask(index, full, question, arguments.top_k, orders)
        plain_answer, plain_ttft, *_ = ask(index, plain, question, arguments.top_k, orders)
        reused = sum(raw["matched_tokens"] for raw in raws) / context
        hits = sum(raw["hits"] for raw in raws)
        yield Row(question, context, reused, hits, ttft, plain_ttft, answer, full_answer, plain_answer, data["answers"])
    blend.close()
    full.close()


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """Over all questions but the first, from which nothing was known."""
    later = rows[1:]

    def right(answers: Iterator[str]) -> float:
        pairs = zip(answers, later, strict=True)
        return statistics.mean(contains_answer(answer, row.expected) for answer, row in pairs)

    return {
        "questions": len(later),
        "reused_median": statistics.median(row.reused for row in later),
        "reused_share_of_all_tokens": sum(r.reused * r.context_tokens for r in later)
        / sum(r.context_tokens for r in later),
        "ttft_s_median": statistics.median(row.ttft_s for row in later),
        "plain_ttft_s_median": statistics.median(row.plain_ttft_s for row in later),
        "speedup_median": statistics.median(row.plain_ttft_s / row.ttft_s for row in later),
        "equal_to_full": statistics.mean(row.answer == row.full_answer for row in later),
        "plain_equal_to_full": statistics.mean(row.plain_answer == row.full_answer for row in later),
        "right": right(row.answer for row in later),
        "right_full": right(row.full_answer for row in later),
        "right_plain": right(row.plain_answer for row in later),
    }


def claims(result: dict[str, float]) -> Iterator[str]:
    """One line each: what is claimed, what was measured, and whether it holds."""
    for claim, measured, least, form in (
        ("context tokens reused from the second question on", result["reused_share_of_all_tokens"], 0.8, ".0%"),
        ("times sooner than HuggingFaceLLM to the first token", result["speedup_median"], 4.0, ".1f"),
        ("answers equal to full prefill's", result["equal_to_full"], 0.9, ".0%"),
    ):
        yield f"{'holds' if measured >= least else 'FAILS'}: {measured:{form}} {claim} (at least {least:{form}})"
    yield f"to compare: {result['plain_equal_to_full']:.0%} of HuggingFaceLLM's answers equal full prefill's"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="as ragblend takes it; the embedded default if left out")
    parser.add_argument("--documents", default=ROOT / "examples" / "handbook")
    parser.add_argument("--questions", default=ROOT / "examples" / "questions.jsonl")
    parser.add_argument("--limit", type=int, help="this many questions only")
    parser.add_argument("--top-k", type=int, default=12)
    parser.add_argument("--chunk-size", type=int, default=256)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", default="auto", help="auto, float32 or bfloat16")
    parser.add_argument("--policy", default="query")
    parser.add_argument("--ratio", type=float, default=0.15)
    parser.add_argument("--best-last", action="store_true", help="the best node next to the question")
    parser.add_argument("--learn-only", action="store_true", help="no KV at ingestion: learn from the questions")
    parser.add_argument("--json", type=Path, help="write rows and summary to this file")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for row in measure(arguments, Path(folder)):
            rows.append(row)
            same = "same" if row.answer == row.full_answer else "differs"
            reuse = f"{row.reused:5.0%} of {row.context_tokens:,} tokens reused"
            times = f"{row.ttft_s:6.2f} s, plain {row.plain_ttft_s:6.2f} s"
            print(f"{reuse}  {times}  {same}  {row.question}", flush=True)
    result = summary(rows)
    print(json.dumps(result, indent=2), *claims(result), sep="\n")
    if arguments.json:
        arguments.json.write_text(json.dumps({"summary": result, "rows": [asdict(row) for row in rows]}, indent=1))


if __name__ == "__main__":
    main()
