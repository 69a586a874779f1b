"""An unmodified compact query engine over chapters of the example handbook: at least 80% of the context is reused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import Document, MetadataMode
from watching import Watcher

from llama_index.llms.ragblend import PrecomputeKV

EXAMPLES = Path(__file__).parents[3] / "examples"
QUESTIONS = [json.loads(line)["question"] for line in (EXAMPLES / "questions.jsonl").read_text().splitlines()[:5]]


def index_of(embed_model, *transformations) -> VectorStoreIndex:
    chapters = [(EXAMPLES / "handbook" / name).read_text() for name in ("welcome.md", "warranty.md")]
    return VectorStoreIndex.from_documents(
        [Document(text=text) for text in chapters],
        transformations=[SentenceSplitter(chunk_size=256, chunk_overlap=0), *transformations],
        embed_model=embed_model,
    )


def shares(llm, index, mode, seed):
    """Of each question's context, how much stood in known chunks; questions in a shuffled order."""
    engine = index.as_query_engine(llm=llm, similarity_top_k=4, response_mode=mode)
    for question in random.Random(seed).sample(QUESTIONS, len(QUESTIONS)):
        with Watcher() as watcher:
            nodes = engine.query(question).source_nodes
        context = sum(len(llm.tokenize(node.node.get_content(MetadataMode.LLM))) for node in nodes)
        yield sum(answer["matched_tokens"] for answer in watcher.answers) / context


def test_with_precomputed_kv_from_the_first_question_on(llm, embed_model):
    index = index_of(embed_model, PrecomputeKV(llm))
    assert min(shares(llm, index, "compact", seed=1)) > 0.99


@pytest.mark.parametrize("mode", ["compact", "refine", "tree_summarize"])
def test_without_it_once_the_nodes_have_been_read(llm, embed_model, mode):
    index = index_of(embed_model)
    list(shares(llm, index, mode, seed=1))
    assert llm.library.wait(120)
    assert min(shares(llm, index, mode, seed=2)) >= 0.8
