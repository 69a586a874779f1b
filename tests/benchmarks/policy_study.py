"""What comes closest to full prefill? Ways to select, and what chunks are prefilled behind.

    python tests/benchmarks/policy_study.py selections --data xquad_en.jsonl --limit 12 [--model M] [--ratios 0.1]
    python tests/benchmarks/policy_study.py prefills --data musique.jsonl --limit 6 --json musique.json
    python tests/benchmarks/policy_study.py ratios --data handbook
    python tests/benchmarks/policy_study.py chunks --data handbook

``selections``: all of selections.py on chunks behind the preamble. ``prefills``: none, hkvd and query behind all of
prefills.py. ``ratios``: the built-in policies at 0.02 to 0.3. ``chunks``: the built-in policies on the handbook in
chunks of 64 to 512 tokens, as a library keeps them. ``--data handbook`` takes the example handbook's questions with
what a library finds for them, placed as it places them; ``--best-last`` places a file's passages so, too.

Prints means: KL to full prefill along full prefill's own greedy answer with 95% bootstrap intervals, and F1. With
``--json FILE`` it writes these with their intervals, agreement on the most likely token, NLL of the right answer, exact
match, the share of answers that equal full prefill's, rows computed, and the time to the first token (in memory; worth
as much as the machine is quiet). What won is the default; what lost stays here, so that it can be tried again on
another model.

Large models take hours. With ``--measured FILE`` each question's measurements are kept there as JSON lines, and a run
that is begun again goes on behind the last whole question.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from handbook import indexed_handbook, question_over, single_fact_questions
from prefills import WAYS, Collection, Prefills
from selections import FromStoredHidden, Sensitive, selections
from torch import Tensor

from ragblend import Engine, Library
from ragblend.bench.data import Example, read_examples
from ragblend.bench.machine import describe_machine
from ragblend.bench.metrics import bootstrap_mean
from ragblend.bench.passages import PassagePrompts, Question
from ragblend.bench.quality import QUESTION
from ragblend.bench.trial import Measurement, Trial
from ragblend.bench.variants import Variant
from ragblend.blend.policies import policy_named
from ragblend.config import fixed_ratio
from ragblend.library.embedding import SentenceEmbedder
from ragblend.library.order import in_order
from ragblend.prompt import chunk_text

ANSWER_TOKENS = 24
RATIOS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
FULL = Variant("full", policy_named("full"), 1.0)
# How the handbook is cut, and how many chunks are found for a question.
CHUNK_TOKENS, FOUND = 256, 6
CHUNK_SIZES = (64, 128, 256, 512)


def questions_of(engine: Engine, data: str, limit: int, ranked: bool) -> tuple[list[Question], Collection]:
    """The questions that fit the context, and all chunks that there are to ask about."""
    if data == "handbook":
        return _handbook(engine, limit)
    prompts = PassagePrompts(engine, QUESTION, 1024, ANSWER_TOKENS)
    examples = read_examples(Path(data), 4 * limit)
    if ranked:
        embedder = SentenceEmbedder()
        examples = [best_last(example, embedder) for example in examples]
    questions = [prompts.question(example) for example in examples]
    chunks = dict.fromkeys(chunk.token_ids for question in questions for chunk in question.prompt.chunks)
    documents = tuple((chunk,) for chunk in chunks)
    fitting = [each for each in questions if len(each.prompt) + each.room <= engine.context_length]
    return fitting[:limit], Collection(engine, documents)


def best_last(example: Example, embedder: SentenceEmbedder) -> Example:
    """The example with its passages in the order in which a library would place them."""
    texts = [chunk_text(passage.title, "", passage.text) for passage in example.passages]
    scores = embedder.embed_chunks(texts) @ embedder.embed_question(example.question)
    passages = tuple(example.passages[place] for place in scores.argsort(kind="stable"))
    return dataclasses.replace(example, passages=passages)


def _handbook(engine: Engine, limit: int) -> tuple[list[Question], Collection]:
    with indexed_handbook(engine, CHUNK_TOKENS) as library:
        everything = library.search("anything", 10_000)
        everything.sort(key=lambda hit: (hit.source.document, hit.source.chunk))
        documents = [
            [hit.segment.token_ids for hit in of] for _, of in groupby(everything, lambda h: h.source.document)
        ]
        return _asked(engine, library, limit, FOUND), Collection(engine, tuple(map(tuple, documents)))


def _asked(engine: Engine, library: Library, limit: int, k: int) -> list[Question]:
    """The handbook's first single-fact questions, with the ``k`` chunks that the library finds for each."""
    questions = []
    for line in single_fact_questions(limit):
        hits = in_order(library.search(line["question"], k), engine.blend.order)
        questions.append(question_over(engine, line, [hit.segment for hit in hits], ANSWER_TOKENS))
    return questions


def measure_chunk_sizes(engine: Engine, limit: int) -> Iterator[tuple[str, Measurement]]:
    """The built-in policies on the handbook as a library keeps it, cut small and large. Prompts are about as long."""
    variants = [Variant(name, policy_named(name), 0.1) for name in ("none", "leading", "hkvd", "query")]
    for tokens in CHUNK_SIZES:
        with indexed_handbook(engine, tokens) as library:
            for question in _asked(engine, library, limit, FOUND * CHUNK_TOKENS // tokens):
                trial = Trial(engine, question, library.store)
                reference = trial.full(FULL)
                way = f"chunks of {tokens} tokens"
                yield way, reference.measurement
                for variant in variants:
                    yield way, trial.blended(variant, reference)
        print(f"{tokens} tokens a chunk", flush=True)


def measure(engine: Engine, arguments: argparse.Namespace) -> Iterator[tuple[str, Measurement]]:
    """What each variant did on each question, with the name of what the chunks were prefilled behind."""
    questions, collection = questions_of(engine, arguments.data, arguments.limit, arguments.best_last)
    sensitivity: dict[str, Tensor] = {}
    hidden: dict[str, list[Tensor]] = {}
    kept = Kept(arguments.measured)
    built_in = [policy_named(name) for name in ("none", "leading", "hkvd", "query")]
    ways = arguments.only or WAYS if arguments.study == "prefills" else ["preamble"]
    if arguments.study == "prefills":
        variants = [Variant(policy.name, policy, 0.15) for policy in built_in if policy.name != "leading"]
    elif arguments.study == "ratios":
        variants = [Variant(policy.name, policy, ratio) for policy in built_in for ratio in RATIOS]
        variants = [each for each in variants if each.label != "none" or each.ratio == RATIOS[0]]
    else:
        variants = [each for ratio in arguments.ratios for each in selections(ratio, sensitivity, hidden)]
        known = {each.label for each in variants}
        if unknown := set(arguments.only or ()) - known:
            raise SystemExit(f"no selection is called {', '.join(sorted(unknown))}: choose from {'; '.join(known)}")
        variants = [each for each in variants if not arguments.only or each.label in arguments.only]
    needs_hidden = any(isinstance(each.policy, FromStoredHidden) for each in variants)
    needs_sensitivity = any(isinstance(each.policy, Sensitive) for each in variants)

    def measure_question(question: Question) -> Iterator[tuple[str, Measurement]]:
        prefills = Prefills(collection)  # anew, so that memory does not grow with the questions
        hidden.clear()
        for chunk in question.prompt.chunks:
            if needs_hidden:
                hidden[chunk.key or ""] = prefills.hidden(chunk.token_ids, engine.adapter.layer_count // 2 + 1)
            if needs_sensitivity:
                sensitivity[chunk.key or ""] = prefills.sensitivity(chunk.token_ids)
        reference = None
        for way in ways:
            trial = Trial(engine, question, prefills.store(question, way))
            if reference is None:
                reference = trial.full(FULL)
                yield "", reference.measurement
            for variant in variants:
                yield way, trial.blended(variant, reference)

    for number, question in enumerate(questions, start=1):
        yield from kept.of(question.example.id) or kept.add(list(measure_question(question)))
        print(f"{number} of {len(questions)}: {len(question.prompt):,} tokens", flush=True)


class Kept:
    """Measurements by question, in a file of JSON lines if there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._questions: dict[str, list[tuple[str, Measurement]]] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                measured = [(way, Measurement(**fields)) for way, fields in json.loads(line)]
                self._questions[measured[0][1].id] = measured

    def of(self, question_id: str) -> list[tuple[str, Measurement]] | None:
        return self._questions.get(question_id)

    def add(self, measured: list[tuple[str, Measurement]]) -> list[tuple[str, Measurement]]:
        """Keeps a question's measurements, and returns them."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([(way, dataclasses.asdict(each)) for way, each in measured]) + "\n")
        return measured


def rows_of(measured: Sequence[tuple[str, Measurement]]) -> list[dict[str, Any]]:
    """Means and intervals of each variant."""
    full = {(way, each.id): each for way, each in measured if each.policy == FULL.label}
    groups: dict[tuple[str, str, float], list[Measurement]] = defaultdict(list)
    for way, each in measured:
        groups[way, each.policy, each.ratio].append(each)
    rows = []
    for (way, policy, ratio), group in groups.items():
        references = [full.get((way, each.id)) or full["", each.id] for each in group]
        row: dict[str, Any] = {"prefilled_behind": way, "selection": policy, "ratio": ratio, "n": len(group)}
        for metric in ("kl_to_full", "top1_agreement", "gold_nll", "f1", "em", "computed_tokens"):
            row[metric] = dataclasses.asdict(bootstrap_mean([getattr(each, metric) for each in group]))
        pairs = list(zip(group, references, strict=True))
        row["f1_less_full"] = dataclasses.asdict(bootstrap_mean([each.f1 - reference.f1 for each, reference in pairs]))
        row["same_answer"] = statistics.fmean(each.answer == reference.answer for each, reference in pairs)
        row["ttft_s"] = statistics.median(each.ttft_s for each in group)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=["selections", "prefills", "ratios", "chunks"])
    parser.add_argument("--data", required=True, help="JSON lines, or handbook")
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--model")
    parser.add_argument(
        "--best-last", action="store_true", help="place passages as a library does, not in the order that they have"
    )
    parser.add_argument("--ratios", type=lambda text: [float(each) for each in text.split(",")], default=[0.1])
    parser.add_argument("--only", type=lambda text: text.split(";"), help="only these, with ; between")
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--measured", type=Path, help="keep each question's measurements here, and go on from them")
    arguments = parser.parse_args()
    for ratio in arguments.ratios:
        fixed_ratio(ratio)
    engine = Engine(arguments.model)
    sizes = arguments.study == "chunks"
    rows = rows_of(list(measure_chunk_sizes(engine, arguments.limit) if sizes else measure(engine, arguments)))
    for row in rows:
        kl = row["kl_to_full"]
        name = f"{row['prefilled_behind']:30} {row['selection']:36} {row['ratio']:5g}"
        print(f"{name} KL {kl['mean']:.4f} ({kl['low']:.4f} to {kl['high']:.4f}) F1 {row['f1']['mean']:.3f}")
    if arguments.json:
        placed = ["the best passage last"] if arguments.best_last else []
        report = {
            "title": f"{arguments.study.capitalize()}: {', '.join([Path(arguments.data).stem, *placed, engine.name])}",
            "command": shlex.join(["python", "tests/benchmarks/policy_study.py", *_shown(sys.argv[1:])]),
            "rows": rows,
            "machine": dataclasses.asdict(describe_machine(engine)),
        }
        arguments.json.write_text(json.dumps(report, indent=1))


def _shown(words: Sequence[str]) -> list[str]:
    """The command without what belongs to one machine: folders, and where the report went."""
    shown: list[str] = []
    rest = iter(part for word in words for part in (word.split("=", 1) if word.startswith("--") else [word]))
    for word in rest:
        if word in ("--json", "--measured"):
            next(rest)
        else:
            shown.append(Path(word).name)
    return shown


if __name__ == "__main__":
    main()
