"""An unmodified stuff chain on ragblend and on plain transformers: reuse, time to first token, and answers.

    python integrations/langchain-ragblend/benchmarks/stuff_chain.py
    python integrations/langchain-ragblend/benchmarks/stuff_chain.py --limit 10 --learn-only --json results.json

LangChain's own create_stuff_documents_chain answers the questions of examples/questions.jsonl from an in-memory vector
store over examples/handbook, three times: with ChatRagBlend, with ChatRagBlend at policy full (its answers are full
prefill's), and with a chat model over transformers' generate. The last one is written below, in forty lines, because
langchain-huggingface does not install beside this version of langchain-core; it does what ChatHuggingFace does with a
local pipeline, on a model of its own as transformers loads it: same weights, dtype and threads. Documents come back in
a shuffled order for every other question; with --order best-first or best-last they always come so. They go through
PrecomputeKV on their way into the store; with --learn-only they do not, and only what an earlier question has seen is
reused. Full prefill and transformers compute the same thing, so how often their answers are equal is how far rounding
lets answers agree. Prints a row a question, a summary, and a line for each of the three claims: reuse, time to first
token, and answers equal to full prefill's.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessageChunk, BaseMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter
from transformers import TextIteratorStreamer

from langchain_ragblend import ChatRagBlend, PrecomputeKV, RagBlendEmbeddings
from ragblend import Engine
from ragblend.bench.metrics import contains_answer
from ragblend.models.load import load_model

EXAMPLES = Path(__file__).parents[3] / "examples"
PROMPT = ChatPromptTemplate.from_messages(
    [
        ("system", "You answer questions from the documents given to you, briefly and exactly."),
        ("human", "Documents:\n\n{context}\n\nAnswer in one short sentence.\nQuestion: {input}"),
    ]
)


class PlainTransformers(BaseChatModel):
    """transformers' generate with its own attention (SDPA), streamed from a thread as its streamer wants."""

    model: Any
    tokenizer: Any
    max_tokens: int

    @property
    def _llm_type(self) -> str:
        return "plain-transformers"

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        return generate_from_stream(self._stream(messages))

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> Iterator[ChatGenerationChunk]:
        turns = convert_to_openai_messages(messages)
        inputs = self.tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, return_tensors="pt", return_dict=True
        ).to(self.model.device)
        streamer = TextIteratorStreamer(self.tokenizer, skip_prompt=True, skip_special_tokens=True)
        arguments = {**inputs, "streamer": streamer, "max_new_tokens": self.max_tokens, "do_sample": False}
        thread = Thread(target=self.model.generate, kwargs=arguments)
        thread.start()
        try:
            for text in streamer:
                if text:
                    yield ChatGenerationChunk(message=AIMessageChunk(text))
        finally:
            thread.join()


def split_handbook(characters: int) -> list[Document]:
    splitter = RecursiveCharacterTextSplitter(chunk_size=characters, chunk_overlap=0)
    files = sorted((EXAMPLES / "handbook").glob("*.md"))
    return splitter.create_documents([file.read_text() for file in files], [{"source": file.name} for file in files])


def ask(chain: Any, question: str, documents: list[Document]) -> tuple[str, float, dict[str, Any]]:
    """The answer, seconds to its first text, and what the last chunk tells."""
    began, first, text, told = time.perf_counter(), None, "", {}
    for chunk in chain.stream({"input": question, "context": documents}):
        if chunk.content and first is None:
            first = time.perf_counter() - began
        text += chunk.content
        told = chunk.response_metadata or told
    return " ".join(text.split()), first if first is not None else time.perf_counter() - began, told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder, a .gguf file or a transformers id (default: the embedded model)")
    parser.add_argument("--dtype", default="auto", help="auto, float32 or bfloat16")
    parser.add_argument("--limit", type=int, help="how many questions (default: all)")
    parser.add_argument("-k", type=int, default=12, help="how many documents in a prompt")
    parser.add_argument("--characters", type=int, default=1000, help="longest document")
    parser.add_argument("--policy", default="query")
    parser.add_argument("--ratio", type=float, default=0.15)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--learn-only", action="store_true", help="no KV at indexing: learn from the questions")
    parser.add_argument("--order", choices=("shuffled", "best-first", "best-last"), default="shuffled")
    parser.add_argument("--alone", action="store_true", help="prefill each document alone, not as a piece of its file")
    parser.add_argument("--json", type=Path, help="write the rows and the summary here")
    options = parser.parse_args()

    engine = Engine(options.model, dtype=options.dtype)
    questions = [json.loads(line) for line in (EXAMPLES / "questions.jsonl").read_text().splitlines()][: options.limit]
    documents = split_handbook(options.characters)
    retriever = InMemoryVectorStore.from_documents(documents, RagBlendEmbeddings()).as_retriever(
        search_kwargs={"k": options.k}
    )
    blended = ChatRagBlend(engine=engine, policy=options.policy, ratio=options.ratio, max_tokens=options.max_tokens)
    full = ChatRagBlend(library=blended.library, policy="full", max_tokens=options.max_tokens)
    loaded = load_model(options.model, dtype=options.dtype)
    plain = PlainTransformers(model=loaded.model, tokenizer=loaded.tokenizer, max_tokens=options.max_tokens)
    if not options.learn_only:
        precompute = PrecomputeKV(blended, piece_of=None if options.alone else "source")
        precompute.transform_documents(documents)
        report = precompute.report
        print(f"precomputed {report.computed} documents, {report.tokens:,} tokens in {report.seconds:.1f} s")
    chains = {  # the prompt's whole message is wanted, so no output parser
        name: create_stuff_documents_chain(llm, PROMPT, output_parser=_as_it_is)
        for name, llm in (("ragblend", blended), ("full", full), ("transformers", plain))
    }

    rows = []
    for number, line in enumerate(questions):
        found = retriever.invoke(line["question"])
        if options.order == "best-last":
            found.reverse()
        elif options.order == "shuffled" and number % 2:
            random.Random(number).shuffle(found)
        context = blended.get_num_tokens("\n\n".join(document.page_content for document in found))
        answers = {}
        for name, chain in chains.items():
            answers[name] = ask(chain, line["question"], found)
            blended.library.wait()  # what is learned in the background must not slow down what comes next
        told = answers["ragblend"][2]
        row = {
            "question": line["question"],
            "context_tokens": context,
            "reused": told["matched_tokens"] / context,
            "ttft_s": {name: seconds for name, (_, seconds, _) in answers.items()},
            "answers": {name: text for name, (text, _, _) in answers.items()},
            "same_as_full": answers["ragblend"][0] == answers["full"][0],
            "right": {name: contains_answer(text, line["answers"]) for name, (text, _, _) in answers.items()},
        }
        rows.append(row)
        times = row["ttft_s"]
        print(
            f"{number + 1:3}  {context:5} tokens  {row['reused']:4.0%} reused  "
            f"{times['ragblend']:.3f} s, full {times['full']:.3f} s, transformers {times['transformers']:.3f} s  "
            f"{'=' if row['same_as_full'] else 'differs'}  {answers['ragblend'][0][:60]}"
        )

    later = rows[1:] or rows
    seconds = {name: statistics.median(row["ttft_s"][name] for row in later) for name in chains}
    summary = {
        "model": engine.name,
        "dtype": str(engine.adapter.model.dtype),
        "threads": torch.get_num_threads(),
        "questions": len(rows),
        "reused_of_context": statistics.mean(row["reused"] for row in later),
        "median_ttft_s": seconds,
        "speedup_vs_transformers": seconds["transformers"] / seconds["ragblend"],
        "right": {name: sum(row["right"][name] for row in rows) for name in chains},
        "same_answers_as_full": statistics.mean(row["same_as_full"] for row in rows),
        "transformers_same_as_full": statistics.mean(
            row["answers"]["transformers"] == row["answers"]["full"] for row in rows
        ),
    }
    print(json.dumps(summary, indent=2), *claims(summary), sep="\n")
    if options.json:
        options.json.write_text(json.dumps({"summary": summary, "rows": rows}, indent=2))
    blended.close()


def claims(summary: dict[str, Any]) -> Iterator[str]:
    """One line each: what is claimed, what was measured, and whether it holds."""
    for claim, measured, least, form in (
        ("context tokens reused from the second question on", summary["reused_of_context"], 0.8, ".0%"),
        ("times sooner than plain transformers to the first token", summary["speedup_vs_transformers"], 4.0, ".1f"),
        ("answers equal to full prefill's", summary["same_answers_as_full"], 0.9, ".0%"),
    ):
        yield f"{'holds' if measured >= least else 'FAILS'}: {measured:{form}} {claim} (at least {least:{form}})"
    yield f"to compare: {summary['transformers_same_as_full']:.0%} of plain transformers' answers equal full prefill's"


def _as_it_is(messages: Iterator[AIMessageChunk]) -> Iterator[AIMessageChunk]:
    """Passes pieces on as they come; a function of one message would wait for the whole answer."""
    yield from messages


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
