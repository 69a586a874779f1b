"""An existing LangChain chain, made faster by swapping its model.

    python examples/langchain_one_line.py
    python examples/langchain_one_line.py --documents manuals/*.md --model Qwen/Qwen2.5-1.5B-Instruct

Splitter, vector store, prompt and chain are LangChain's own and stay as they were: here its in-memory store, but it may
as well be Chroma, FAISS or pgvector. The questions are asked twice, with the documents the other way round the second
time. The embedded model is small: what it says of so many documents is often wrong, whatever is reused, and a larger
one (--model) answers better. Needs integrations/langchain-ragblend and langchain-text-splitters.
"""

import argparse
from pathlib import Path

from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter

from langchain_ragblend import ChatRagBlend, PrecomputeKV, RagBlendEmbeddings

HANDBOOK = Path(__file__).parent / "handbook"
QUESTIONS = ["When did the Heron 8 go on sale?", "For how long is the Nest covered by the warranty?"]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("questions", nargs="*", default=QUESTIONS)
parser.add_argument("--documents", nargs="+", type=Path, default=[HANDBOOK / "models.md", HANDBOOK / "warranty.md"])
parser.add_argument("--model", help="a folder, a .gguf file or a transformers id (default: the embedded model)")
parser.add_argument("--library", help="where KV is kept (default: a temporary folder)")
parser.add_argument("-k", type=int, default=5, help="how many documents in a prompt")
parser.add_argument("--max-tokens", type=int, default=32, help="longest answer")
options = parser.parse_args()

# --- the chain as it was ---
splitter = RecursiveCharacterTextSplitter(chunk_size=900, chunk_overlap=0)
chunks = splitter.create_documents([path.read_text() for path in options.documents])
retriever = InMemoryVectorStore.from_documents(chunks, RagBlendEmbeddings()).as_retriever(
    search_kwargs={"k": options.k}
)
prompt = ChatPromptTemplate.from_messages(
    [
        ("system", "You answer questions from the documents given to you, briefly and exactly."),
        ("human", "Documents:\n\n{context}\n\nAnswer in one short sentence.\nQuestion: {question}"),
    ]
)

# --- the line that changes: it was ChatHuggingFace(llm=HuggingFacePipeline.from_model_id(...)) ---
llm = ChatRagBlend(model=options.model, library=options.library, max_tokens=options.max_tokens)
chain = prompt | llm

# --- and one that has the KV ready before the first question ---
chunks = PrecomputeKV(llm).transform_documents(chunks)


def ask(question: str, documents: list[Document]) -> None:
    context = "\n\n".join(document.page_content for document in documents)
    answer = chain.invoke({"context": context, "question": question})
    told = answer.response_metadata
    share = told["matched_tokens"] / llm.get_num_tokens(context)
    seconds = told["timings"]["ttft_s"]
    print(f"{question}\n  {' '.join(answer.content.split())}")
    print(
        f"  {share:.0%} of the context reused, {told['computed_tokens']:,} tokens computed, first token {seconds:.2f} s"
    )


with llm:
    for question in options.questions:
        found = retriever.invoke(question)
        ask(question, found)
        ask(question, found[::-1])
