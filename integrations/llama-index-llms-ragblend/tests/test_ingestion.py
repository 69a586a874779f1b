"""PrecomputeKV in an ingestion pipeline: exactly the text that the LLM will receive, and nothing else is touched."""

from __future__ import annotations

import asyncio
import json

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.extractors import BaseExtractor
from llama_index.core.ingestion import DocstoreStrategy, IngestionCache, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import Document, MetadataMode, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from setting import WordEmbedding
from watching import Watcher

from llama_index.llms.ragblend import PrecomputeKV, RagBlend
from llama_index.vector_stores.ragblend import RagBlendVectorStore
from ragblend import Library
from ragblend.errors import ConfigError, RagblendError


class Keywords(BaseExtractor):
    """Adds metadata that the LLM sees."""

    async def aextract(self, nodes):
        return [{"first": node.get_content().split()[0]} for node in nodes]


def known(library: Library, texts) -> int:
    """How many of the texts have KV already."""
    return library.precompute(texts).unchanged


def llm_texts(nodes) -> list[str]:
    return [node.get_content(MetadataMode.LLM).strip() for node in nodes]


def test_the_kv_is_that_of_the_text_the_llm_receives(llm, documents):
    pipeline = IngestionPipeline(transformations=[SentenceSplitter(), Keywords(), PrecomputeKV(llm)])
    nodes = pipeline.run(documents=documents)
    assert "first: The" in llm_texts(nodes)[0]
    assert known(llm.library, llm_texts(nodes)) == len(nodes)


def test_nodes_of_one_document_are_prefilled_behind_those_before_them(llm):
    """And the first of the next document stands alone."""
    names = ("Heron", "Wren")
    texts = {
        name: " ".join(f"The sentence with the number {number} tells of the {name}." for number in range(9))
        for name in names
    }
    documents = [Document(text=text, id_=name) for name, text in texts.items()]
    splitter = SentenceSplitter(chunk_size=150, chunk_overlap=0, tokenizer=list)
    nodes = IngestionPipeline(transformations=[splitter, PrecomputeKV(llm)]).run(documents=documents)
    ids, expected = llm.library.engine.template.text_ids, set()
    for name in names:
        pieces = [text for node, text in zip(nodes, llm_texts(nodes), strict=True) if node.ref_doc_id == name]
        assert len(pieces) > 2
        for count, text in enumerate(pieces):
            before = [token for piece in pieces[:count] for token in ids(f"{piece}\n\n")]
            expected.add(llm.library.engine.chunk_key("default", ids(text), context_ids=before))
    assert {entry.key for entry in llm.library.store.entries()} == expected
    with Watcher() as watcher:
        index = VectorStoreIndex(nodes, embed_model=WordEmbedding())
        index.as_query_engine(llm=llm, similarity_top_k=3).query("What of the Heron?")
    assert watcher.answers[0]["hits"] == 3


def test_nodes_cache_and_docstore_hold_no_kv(llm, documents, tmp_path):
    plain = IngestionPipeline(transformations=[SentenceSplitter()]).run(documents=documents)
    pipeline = IngestionPipeline(
        transformations=[SentenceSplitter(), PrecomputeKV(llm), WordEmbedding()],
        docstore=SimpleDocumentStore(),
        vector_store=RagBlendVectorStore(llm),
        cache=IngestionCache(),
    )
    nodes = pipeline.run(documents=documents)
    assert [node.metadata for node in nodes] == [node.metadata for node in plain]
    pipeline.persist(str(tmp_path / "pipeline"))
    written = sum(path.stat().st_size for path in (tmp_path / "pipeline").iterdir())
    assert written < llm.library.info().kv_bytes / 5


def test_the_cache_is_as_good_as_the_library_that_it_was_filled_for(engine, documents, tmp_path):
    """A cached run precomputes nothing again, but another library is filled whatever the cache knows."""
    cache = IngestionCache()

    def run(library: Library) -> int:
        pipeline = IngestionPipeline(transformations=[SentenceSplitter(), PrecomputeKV(library)], cache=cache)
        return known(library, llm_texts(pipeline.run(documents=documents)))

    with Library.open(tmp_path / "one", engine=engine) as one, Library.open(tmp_path / "two", engine=engine) as two:
        assert run(one) == run(one) == run(two) == len(documents)
    with Library.open(tmp_path / "one", engine=engine) as again:
        assert run(again) == len(documents)


def test_a_document_that_is_upserted_is_precomputed_again(llm, embed_model):
    pipeline = IngestionPipeline(
        transformations=[SentenceSplitter(), PrecomputeKV(llm), embed_model],
        docstore=SimpleDocumentStore(),
        vector_store=RagBlendVectorStore(llm),
        docstore_strategy=DocstoreStrategy.UPSERTS,
    )
    pipeline.run(documents=[Document(text="The first version of a text that is kept.", id_="d")])
    assert pipeline.run(documents=[Document(text="The first version of a text that is kept.", id_="d")]) == []
    [node] = pipeline.run(documents=[Document(text="The second version of a text that is kept.", id_="d")])
    assert [kept.get_content() for kept in pipeline.vector_store.get_nodes()] == [node.get_content()]
    assert known(llm.library, llm_texts([node])) == 1


def test_it_runs_asynchronously(llm, documents):
    pipeline = IngestionPipeline(transformations=[SentenceSplitter(), PrecomputeKV(llm)])
    nodes = asyncio.run(pipeline.arun(documents=documents))
    assert known(llm.library, llm_texts(nodes)) == len(documents)


def test_several_processes_are_refused(llm, documents):
    pipeline = IngestionPipeline(transformations=[SentenceSplitter(), PrecomputeKV(llm)])
    with pytest.raises(ConfigError, match="num_workers"):
        pipeline.run(documents=documents, num_workers=2)
    with pytest.raises(ConfigError, match="num_workers"):
        asyncio.run(pipeline.arun(documents=documents, num_workers=2))


def test_it_is_a_transformation_of_an_index_too(llm, documents, embed_model):
    index = VectorStoreIndex.from_documents(
        documents, transformations=[SentenceSplitter(), PrecomputeKV(llm)], embed_model=embed_model
    )
    with Watcher() as watcher:
        index.as_query_engine(llm=llm, similarity_top_k=3).query("How long does the warranty of the Heron last?")
    assert watcher.answers[0]["hits"] == 3


def test_it_is_described_without_anything_heavy(llm):
    described = PrecomputeKV(llm).to_dict()
    assert described["class_name"] == "PrecomputeKV"
    assert len(json.dumps(described)) < 300
    assert described != PrecomputeKV(llm, pieces=False).to_dict(), "a pipeline that has a cache must fill the KV anew"


def test_nodes_of_one_document_can_be_prefilled_alone(llm):
    document = Document(text=" ".join(f"The sentence with the number {number} tells of it." for number in range(9)))
    splitter = SentenceSplitter(chunk_size=150, chunk_overlap=0, tokenizer=list)
    nodes = IngestionPipeline(transformations=[splitter, PrecomputeKV(llm, pieces=False)]).run(documents=[document])
    engine = llm.library.engine
    alone = {engine.chunk_key("default", engine.template.text_ids(text)) for text in llm_texts(nodes)}
    assert len(alone) > 2
    assert {entry.key for entry in llm.library.store.entries()} == alone


def test_nodes_without_text_and_short_ones_are_passed_on(llm, caplog):
    nodes = [
        TextNode(text=""),
        TextNode(text="Short."),
        TextNode(text="A sentence that is long enough to be worth it."),
    ]
    with caplog.at_level("INFO", "llama_index.llms.ragblend.precompute"):
        assert PrecomputeKV(llm)(nodes) == nodes
    assert "KV of 1 texts computed" in caplog.text
    assert "Short." in caplog.text
    assert PrecomputeKV(llm)([]) == []


def test_a_folder_an_open_library_and_an_llm_will_do(llm, engine, tmp_path):
    assert PrecomputeKV(llm).library is PrecomputeKV(llm.library).library is llm.library
    opened = PrecomputeKV(tmp_path / "folder", engine=engine).library
    assert (tmp_path / "folder").is_dir()
    opened.close()


def test_a_closed_library_says_so(engine, documents):
    llm = RagBlend(engine=engine)
    pipeline = IngestionPipeline(transformations=[SentenceSplitter(), PrecomputeKV(llm)])
    llm.close()
    with pytest.raises(RagblendError, match="closed"):
        pipeline.run(documents=documents)
