"""An unmodified stuff chain over chapters of the example handbook: at least 80% of the context is reused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter

import tiny
from langchain_ragblend import ChatRagBlend, PrecomputeKV
from ragblend import Engine

EXAMPLES = Path(__file__).parents[4] / "examples"
QUESTIONS = [json.loads(line)["question"] for line in (EXAMPLES / "questions.jsonl").read_text().splitlines()[:5]]
# The form of the prompt that most tutorials pull from LangChain's hub.
TUTORIAL = [("human", "Use the context to answer.\nQuestion: {input} \nContext: {context} \nAnswer:")]
DRAWN = [("system", "Be brief."), ("human", "Documents:\n\n{context}\n\nAnswer.\nQuestion: {input}")]


@pytest.fixture(scope="module")
def engine() -> Engine:
    """A random llama with one token a byte and room for long prompts."""
    model = tiny.family("llama", 0, max_position_embeddings=16384, num_hidden_layers=2)
    return Engine.from_model(model, tiny.tokenizer(), name="tiny")


@pytest.fixture(scope="module")
def retrieved():
    """For each question the documents that stand in its prompt."""
    splitter = RecursiveCharacterTextSplitter(chunk_size=800, chunk_overlap=0)
    chapters = [(EXAMPLES / "handbook" / name).read_text() for name in ("welcome.md", "warranty.md")]
    store = InMemoryVectorStore.from_documents(splitter.create_documents(chapters), DeterministicFakeEmbedding(size=8))
    retriever = store.as_retriever(search_kwargs={"k": 5})
    return {question: retriever.invoke(question) for question in QUESTIONS}


def shares(llm, retrieved, messages, seed):
    """Of each question's context, how much stood in known chunks; documents and questions in a shuffled order."""
    prompt = ChatPromptTemplate.from_messages(messages)
    chain = create_stuff_documents_chain(llm, prompt, output_parser=lambda message: message)
    for question, documents in random.Random(seed).sample(list(retrieved.items()), len(retrieved)):
        shuffled = random.Random(seed).sample(documents, len(documents))
        told = chain.invoke({"input": question, "context": shuffled}).response_metadata
        yield told["matched_tokens"] / sum(llm.get_num_tokens(document.page_content) for document in documents)


@pytest.mark.parametrize("messages", [TUTORIAL, DRAWN], ids=["tutorial", "drawn"])
def test_with_precomputed_kv_from_the_first_question_on(engine, retrieved, messages):
    with ChatRagBlend(engine=engine, max_tokens=2) as llm:
        PrecomputeKV(llm).transform_documents([document for found in retrieved.values() for document in found])
        assert min(shares(llm, retrieved, messages, seed=1)) == 1


@pytest.mark.parametrize("messages", [TUTORIAL, DRAWN], ids=["tutorial", "drawn"])
def test_without_it_once_the_documents_have_been_read(engine, retrieved, messages):
    with ChatRagBlend(engine=engine, max_tokens=2) as llm:
        list(shares(llm, retrieved, messages, seed=1))
        assert llm.library.wait(120)
        assert min(shares(llm, retrieved, messages, seed=2)) >= 0.8
