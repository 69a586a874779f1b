"""How often search finds the sentence that answers a question, by what of a chunk is embedded.

    python tests/benchmarks/retrieval_study.py

Chunks the example handbook as ``ragblend index`` does, embeds each chunk whole and in windows of so many
sentences, and ranks chunks by the whole, by the best window, or by the mean of the two. A question counts
as found at k when all its evidence stands in the k best chunks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from ragblend.library.chunking import Chunker
from ragblend.library.embedding import SentenceEmbedder
from ragblend.library.loaders import load
from ragblend.library.windows import windows
from ragblend.models.embedded import default_model_path
from ragblend.prompt import PromptTemplate, chunk_text

EXAMPLES = Path(__file__).parents[2] / "examples"
KS = (1, 3, 6, 10)


def handbook(tokens: int = 256) -> list[tuple[str, str]]:
    """Label and text of every chunk."""
    chunker = Chunker(PromptTemplate(AutoTokenizer.from_pretrained(default_model_path())), tokens)
    chunks = []
    for path in sorted((EXAMPLES / "handbook").glob("*.md")):
        title, cut = chunker.cut(load(str(path), path.read_bytes()))
        chunks += [(" > ".join(filter(None, (title, chunk.heading))), chunk.text) for chunk in cut]
    return chunks


def found(ranked: Sequence[int], chunks: Sequence[tuple[str, str]], evidence: Sequence[str]) -> bool:
    texts = [" ".join(chunks[index][1].split()) for index in ranked]
    return all(any(" ".join(sentence.split()) in text for text in texts) for sentence in evidence)


def best_windows(
    embedder: SentenceEmbedder, chunks: Sequence[tuple[str, str]], asked: np.ndarray, sentences: int
) -> tuple[np.ndarray, int]:
    """Score of each chunk's best window for each question, [questions, chunks], and the number of windows."""
    groups = [windows(text, sentences) or [text] for _, text in chunks]
    flat = [chunk_text(label, "", piece) for (label, _), group in zip(chunks, groups, strict=True) for piece in group]
    scores = asked @ embedder.embed_chunks(flat).T
    ends = np.cumsum([len(group) for group in groups])[:-1]
    return np.stack([part.max(axis=1) for part in np.split(scores, ends, axis=1)], axis=1), len(flat)


def main() -> None:
    chunks = handbook()
    questions = [json.loads(line) for line in (EXAMPLES / "questions.jsonl").read_text().splitlines()]
    embedder = SentenceEmbedder()
    asked = np.stack([embedder.embed_question(question["question"]) for question in questions])
    whole = asked @ embedder.embed_chunks([chunk_text(label, "", text) for label, text in chunks]).T
    ways = {"whole": (whole, len(chunks))}
    for sentences in (1, 2, 3):
        best, count = best_windows(embedder, chunks, asked, sentences)
        ways |= {f"windows of {sentences}": (best, count), f"mean with {sentences}": ((whole + best) / 2, count)}
    print(f"{len(chunks)} chunks, {len(questions)} questions")
    print("ranked by       vectors  hops  " + "  ".join(f"k={k:<6}" for k in KS))
    for name, (scores, count) in ways.items():
        ranked = np.argsort(-scores, axis=1, kind="stable")
        for hops in sorted({question["hops"] for question in questions}):
            rows = [index for index, question in enumerate(questions) if question["hops"] == hops]
            hits = [sum(found(ranked[row, :k], chunks, questions[row]["evidence"]) for row in rows) for k in KS]
            counts = "  ".join(f"{count_found:2}/{len(rows):<5}" for count_found in hits)
            print(f"{name:<14} {count:>8}  {hops:>4}  {counts}")


if __name__ == "__main__":
    main()
