"""LangChain, streaming in a terminal: text as it comes, then sources and what was reused.

    python examples/langchain_stream.py
    python examples/langchain_stream.py "Is the Wren 3 waterproof?" --documents manuals/ --library manuals.rag

Files are indexed into a ragblend library, as `ragblend index` does, and found by its retriever. Ctrl-C ends an answer
and frees what it holds. Needs integrations/langchain-ragblend.
"""

import argparse
import asyncio
import contextlib
from pathlib import Path

from langchain_ragblend import ChatRagBlend, RagBlendRetriever
from ragblend import Engine, Library

WARRANTY = Path(__file__).parent / "handbook" / "warranty.md"

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("question", nargs="?", default="How long does the warranty of the Wren 3 last?")
parser.add_argument("--documents", nargs="+", type=Path, default=[WARRANTY], help="files and folders")
parser.add_argument("--library", help="the library's folder (default: a temporary one)")
parser.add_argument("--model", help="a folder, a .gguf file or a transformers id (default: the embedded model)")
parser.add_argument("-k", type=int, default=4, help="how many chunks to answer from")
parser.add_argument("--max-tokens", type=int, default=48, help="longest answer")
options = parser.parse_args()


async def answer(llm: ChatRagBlend, retriever: RagBlendRetriever) -> None:
    documents = await retriever.ainvoke(options.question)
    told = None
    async for chunk in llm.astream(options.question, documents=documents):
        print(chunk.content, end="", flush=True)
        told = chunk.response_metadata or told
    print(
        f"\n\n{told['hits']} of {len(documents)} chunks from the store, first token {told['timings']['ttft_s']:.2f} s"
    )
    for source in told["sources"]:
        print(f"{Path(source['document']).name}, chunk {source['chunk']}")


with Library.open(options.library, engine=Engine(options.model)) as library:
    library.add(options.documents)
    llm = ChatRagBlend(library=library, max_tokens=options.max_tokens)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(answer(llm, RagBlendRetriever(library=library, k=options.k, order="best-last")))
