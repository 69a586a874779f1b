"""What should a splitter's pieces be prefilled behind, if they overlap or not?

    python tests/benchmarks/pieces_study.py --limit 20
    python tests/benchmarks/pieces_study.py --limit 20 --overlap 200 --order best-first

LangChain's RecursiveCharacterTextSplitter cuts the example handbook as the benchmark of the stuff chain does. The
pieces nearest to a question stand in a prompt with a blank line between them. Their KV comes from behind the preamble;
behind the pieces before them, joined as they are or with a blank line between; or behind the document's own text
before them, as much of it, in which nothing stands twice where pieces overlap. Prints the mean KL to full prefill
along its own greedy answer with 95% bootstrap intervals, and the share of answers that equal full prefill's, on the
questions that one fact answers; and how many tokens each way computes.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from handbook import question_over, single_fact_questions
from langchain_text_splitters import RecursiveCharacterTextSplitter

from ragblend import BlendSettings, Engine
from ragblend.bench.data import handbook_folder
from ragblend.bench.metrics import bootstrap_mean
from ragblend.bench.passages import Question
from ragblend.bench.stores import UNBOUNDED
from ragblend.bench.trial import Trial
from ragblend.bench.variants import Variant
from ragblend.blend.policies import policy_named
from ragblend.library.embedding import SentenceEmbedder
from ragblend.library.sections import Section
from ragblend.prompt import Segment
from ragblend.store.memory import MemoryStore

ANSWER_TOKENS = 24
FULL = Variant("full", policy_named("full"), 1.0)
VARIANTS = [Variant(name, policy_named(name), 0.15) for name in ("none", "query")]
Ids = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """contexts: what it may stand behind, by name."""

    text: str
    token_ids: Ids
    contexts: dict[str, Ids]


def cut(engine: Engine, path: Path, characters: int, overlap: int) -> Iterator[Piece]:
    splitter = RecursiveCharacterTextSplitter(chunk_size=characters, chunk_overlap=overlap, add_start_index=True)
    text, ids = path.read_text(encoding="utf-8"), engine.template.text_ids
    joined, apart = Section(engine), Section(engine, tuple(ids("\n\n")))
    for document in splitter.create_documents([text]):
        token_ids = engine.template.bare_ids(document.page_content)
        before = apart.next(token_ids).context_ids
        own = tuple(ids(text[: document.metadata["start_index"]]))
        contexts = {
            "the preamble": (),
            "pieces before, joined": joined.next(token_ids).context_ids,
            "pieces before, blank lines between": before,
            "the document's text before": own[-len(before) :] if before else (),
        }
        yield Piece(document.page_content, token_ids, contexts)


def computed(pieces: Sequence[Piece], way: str) -> float:
    """Tokens that prefilling all pieces in order computes, for one of theirs: runs of pieces are computed at once."""
    tokens, run = 0, ()
    for piece in pieces:
        context = piece.contexts[way]
        whole = context + piece.token_ids
        tokens += len(whole) - (len(run) if run and context[: len(run)] == run else 0)
        run = whole if context else ()
    return tokens / sum(len(piece.token_ids) for piece in pieces)


def question_of(engine: Engine, line: dict, pieces: Sequence[Piece]) -> Question:
    blank = Segment("glue", tuple(engine.template.text_ids("\n\n")))
    chunks = [segment for piece in pieces for segment in (Segment("chunk", piece.token_ids, piece.text), blank)]
    return question_over(engine, line, chunks, ANSWER_TOKENS)


def stored(engine: Engine, pieces: Sequence[Piece], way: str) -> MemoryStore:
    store = MemoryStore(budget_bytes=UNBOUNDED)
    kvs = engine.prefill([piece.token_ids for piece in pieces], contexts=[piece.contexts[way] for piece in pieces])
    for piece, kv in zip(pieces, kvs, strict=True):
        store.put(piece.text, kv)
    print(f"{len(pieces)} pieces behind {way}", flush=True)
    return store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--dtype", default="auto", help="auto, float32 or bfloat16")
    parser.add_argument("--limit", type=int, default=8, help="how many questions")
    parser.add_argument("-k", type=int, default=6, help="how many pieces in a prompt")
    parser.add_argument("--characters", type=int, default=1000, help="longest piece")
    parser.add_argument("--overlap", type=int, default=0, help="characters that pieces share")
    parser.add_argument("--order", choices=("best-last", "best-first"), default=BlendSettings().order)
    options = parser.parse_args()
    engine = Engine(options.model, dtype=options.dtype)
    paths = sorted(handbook_folder().glob("*.md"))
    pieces = [piece for path in paths for piece in cut(engine, path, options.characters, options.overlap)]
    for way in pieces[0].contexts:
        print(f"{way:36} {computed(pieces, way):.2f} times the tokens of {len(pieces)} pieces computed")
    embedder = SentenceEmbedder()
    vectors = embedder.embed_chunks([piece.text for piece in pieces])
    asked = single_fact_questions(options.limit)
    step = 1 if options.order == "best-first" else -1
    found = [
        (-(vectors @ embedder.embed_question(line["question"]))).argsort(kind="stable")[: options.k][::step].tolist()
        for line in asked
    ]
    needed = [pieces[index] for index in sorted({index for indices in found for index in indices})]
    stores = {way: stored(engine, needed, way) for way in pieces[0].contexts}
    distances: dict[tuple[str, str], list[float]] = defaultdict(list)
    same: dict[tuple[str, str], int] = defaultdict(int)
    for number, (line, indices) in enumerate(zip(asked, found, strict=True), start=1):
        question = question_of(engine, line, [pieces[index] for index in indices])
        reference = None
        for way, store in stores.items():
            trial = Trial(engine, question, store)
            reference = reference or trial.full(FULL)
            for variant in VARIANTS:
                measured = trial.blended(variant, reference)
                distances[way, variant.label].append(measured.kl_to_full)
                same[way, variant.label] += measured.answer == reference.measurement.answer
        print(f"{number} of {len(asked)}: {len(question.prompt):,} tokens", flush=True)
    for (way, policy), values in distances.items():
        mean, equal = bootstrap_mean(values), same[way, policy] / len(values)
        print(f"{way:36} {policy:6} {mean.mean:.4f} ({mean.low:.4f} to {mean.high:.4f}), {equal:.0%} equal answers")


if __name__ == "__main__":
    main()
