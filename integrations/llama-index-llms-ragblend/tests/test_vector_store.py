"""A vector store as LlamaIndex's indexes use them, whose nodes are prefilled when they are added."""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core import StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.schema import Document, IndexNode, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.simple import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)
from watching import Watcher

from llama_index.llms.ragblend import RagBlend
from llama_index.llms.ragblend.precompute import llm_text
from llama_index.vector_stores.ragblend import RagBlendVectorStore
from ragblend.errors import ConfigError, LibraryMismatchError

QUESTION = "How long does the warranty of the Heron last?"


@pytest.fixture
def store(llm) -> RagBlendVectorStore:
    return RagBlendVectorStore(llm)


def query(embed_model, top_k=3, **fields) -> VectorStoreQuery:
    return VectorStoreQuery(
        query_embedding=embed_model.get_query_embedding(QUESTION), similarity_top_k=top_k, query_str=QUESTION, **fields
    )


def where(key, value, operator=FilterOperator.EQ) -> MetadataFilters:
    return MetadataFilters(filters=[MetadataFilter(key=key, value=value, operator=operator)])


def test_nodes_come_back_as_they_went_in(store, nodes):
    assert store.add(nodes) == [node.node_id for node in nodes]
    kept = {node.node_id: node for node in store.get_nodes()}
    for node in nodes:
        expected = node.model_copy(update={"embedding": None})
        assert kept[node.node_id].to_dict() == expected.to_dict()


def test_nodes_of_one_document_are_prefilled_behind_those_before_them(store, nodes, embed_model):
    of_one = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="handbook")}
    pieces = [node.model_copy(update={"relationships": of_one}) for node in nodes[:2]]
    store.add([*pieces, nodes[2]])
    engine = store.client.engine
    ids, texts = engine.template.text_ids, [llm_text(node) for node in (*pieces, nodes[2])]
    keys = [engine.chunk_key("default", ids(text)) for text in (texts[0], texts[2])]
    keys.append(engine.chunk_key("default", ids(texts[1]), context_ids=ids(f"{texts[0]}\n\n")))
    assert {entry.key for entry in store.client.store.entries()} == set(keys)


def test_nodes_of_one_document_can_be_prefilled_alone(llm, nodes):
    of_one = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="handbook")}
    pieces = [node.model_copy(update={"relationships": of_one}) for node in nodes[:2]]
    store = RagBlendVectorStore(llm, pieces=False)
    store.add(pieces)
    engine = store.client.engine
    alone = {engine.chunk_key("default", engine.template.text_ids(llm_text(node))) for node in pieces}
    assert {entry.key for entry in store.client.store.entries()} == alone


def test_the_order_of_a_search_is_llama_indexs_own(store, nodes, embed_model):
    own = SimpleVectorStore()
    store.add(nodes)
    own.add(nodes)
    ours, theirs = store.query(query(embed_model, 6)), own.query(query(embed_model, 6))
    assert ours.ids == theirs.ids
    assert ours.similarities == pytest.approx(theirs.similarities, abs=2e-4)  # kept in float16
    assert [node.node_id for node in ours.nodes] == ours.ids


def test_mmr_is_llama_indexs_own(store, nodes, embed_model):
    own = SimpleVectorStore()
    twins = [node.model_copy(update={"id_": f"{node.node_id}-twin"}) for node in nodes]
    store.add([*nodes, *twins])
    own.add([*nodes, *twins])
    asked = query(embed_model, 4, mode=VectorStoreQueryMode.MMR)
    ours = store.query(asked, mmr_threshold=0.4, mmr_prefetch_k=12)
    theirs = own.query(asked, mmr_threshold=0.4)
    assert [id.removesuffix("-twin") for id in ours.ids] == [id.removesuffix("-twin") for id in theirs.ids]
    assert ours.similarities == pytest.approx(theirs.similarities, abs=2e-4)  # kept in float16
    assert ours.ids != store.query(query(embed_model, 4)).ids


@pytest.mark.parametrize(
    ("filters", "pages"),
    [
        (where("kind", "odd"), {1, 3, 5}),
        (where("page", 3, FilterOperator.GTE), {3, 4, 5}),
        (where("page", [0, 5], FilterOperator.IN), {0, 5}),
        (where("ki", None, FilterOperator.IS_EMPTY), {0, 1, 2, 3, 4, 5}),
        (
            MetadataFilters(filters=[*where("kind", "odd").filters, *where("page", 0).filters], condition="or"),
            {0, 1, 3, 5},
        ),
        (MetadataFilters(filters=[where("kind", "odd"), where("page", 3, FilterOperator.GT)], condition="and"), {5}),
        (MetadataFilters(filters=[where("kind", "odd")], condition=FilterCondition.NOT), {0, 2, 4}),
        (MetadataFilters(filters=[]), {0, 1, 2, 3, 4, 5}),
    ],
)
def test_filters_nested_ones_included(store, nodes, embed_model, filters, pages):
    store.add(nodes)
    found = store.query(query(embed_model, 6, filters=filters)).nodes
    assert {node.metadata["page"] for node in found} == pages
    assert {node.metadata["page"] for node in store.get_nodes(filters=filters)} == pages


def test_a_search_can_be_kept_to_nodes_and_documents(store, embed_model):
    index = VectorStoreIndex.from_documents(
        [Document(text=f"The warranty number {n}.", id_=f"d{n}") for n in range(4)],
        storage_context=StorageContext.from_defaults(vector_store=store),
        embed_model=embed_model,
    )
    assert index.docstore.docs == {}
    [kept] = store.query(query(embed_model, 9, doc_ids=["d2"])).nodes
    assert kept.ref_doc_id == "d2"
    assert store.query(query(embed_model, 9, node_ids=[kept.node_id])).ids == [kept.node_id]


def test_deleting_by_document_by_id_and_by_filter(store, nodes, llm):
    for node in nodes[:2]:
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id="doc")
    store.add(nodes)
    before = llm.library.info().kv_bytes
    store.delete("doc")
    assert {node.metadata["page"] for node in store.get_nodes()} == {2, 3, 4, 5}
    store.delete_nodes([nodes[2].node_id, "unknown"])
    store.delete_nodes(filters=where("kind", "odd"))
    assert [node.node_id for node in store.get_nodes()] == [nodes[4].node_id]
    assert 0 < llm.library.info().kv_bytes < before / 3
    store.clear()
    assert store.get_nodes() == []
    assert llm.library.info().kv_bytes == 0
    store.delete("doc")


def test_an_index_answers_with_whole_nodes_from_the_first_question_on(store, llm, documents, embed_model):
    storage = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex.from_documents(documents, storage_context=storage, embed_model=embed_model)
    with Watcher() as watcher:
        response = index.as_query_engine(llm=llm, similarity_top_k=4).query(QUESTION)
    assert watcher.answers[0]["hits"] == 4
    assert "six years" in response.source_nodes[0].text


def test_an_index_is_refreshed_document_by_document(store, embed_model, documents):
    storage = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex.from_documents(documents, storage_context=storage, embed_model=embed_model)
    index.update_ref_doc(Document(text="The warranty is gone.", id_=documents[1].id_))
    assert len(store.get_nodes()) == len(documents)
    assert not any("six years" in node.get_content() for node in store.get_nodes())
    index.delete_ref_doc(documents[1].id_)
    assert len(store.get_nodes()) == len(documents) - 1
    index.delete_nodes([node.node_id for node in store.get_nodes()])
    assert store.get_nodes() == []


def test_everything_is_there_after_a_restart(engine, tmp_path, documents, embed_model):
    with RagBlend(engine=engine, library=tmp_path / "kept", max_tokens=4) as llm:
        storage = StorageContext.from_defaults(vector_store=RagBlendVectorStore(llm))
        index = VectorStoreIndex.from_documents(documents, storage_context=storage, embed_model=embed_model)
        before = [node.node_id for node in index.as_retriever().retrieve(QUESTION)]
        storage.persist(tmp_path / "storage")
    with RagBlend(engine=engine, library=tmp_path / "kept", max_tokens=4) as llm:
        store = RagBlendVectorStore(llm)
        again = VectorStoreIndex.from_vector_store(store, embed_model=embed_model)
        assert [node.node_id for node in again.as_retriever().retrieve(QUESTION)] == before
        storage = StorageContext.from_defaults(vector_store=store, persist_dir=str(tmp_path / "storage"))
        loaded = load_index_from_storage(storage, embed_model=embed_model)
        assert [node.node_id for node in loaded.as_retriever().retrieve(QUESTION)] == before
        with Watcher() as watcher:
            again.as_query_engine(llm=llm, similarity_top_k=2).query(QUESTION)
        assert watcher.answers[0]["hits"] == 2


def test_its_asynchronous_twins_do_the_same(store, nodes, embed_model):
    async def all_of_it() -> None:
        assert await store.async_add(nodes) == [node.node_id for node in nodes]
        assert (await store.aquery(query(embed_model))).ids == store.query(query(embed_model)).ids
        assert len(await store.aget_nodes([nodes[0].node_id])) == 1
        await store.adelete_nodes([nodes[0].node_id])
        await store.adelete("nothing")
        assert len(await store.aget_nodes()) == len(nodes) - 1
        await store.aclear()
        assert await store.aget_nodes() == []

    asyncio.run(all_of_it())


def test_nodes_of_other_kinds_keep_their_kind(store, embed_model):
    node = IndexNode(text="Points elsewhere, at length.", index_id="there", id_="pointer")
    node.embedding = embed_model.get_text_embedding(node.text)
    store.add([node])
    [kept] = store.get_nodes()
    assert isinstance(kept, IndexNode)
    assert kept.index_id == "there"


def test_an_empty_store_finds_nothing(store, embed_model):
    found = store.query(query(embed_model))
    assert (found.nodes, found.ids, found.similarities) == ([], [], [])


def test_what_it_cannot_do_is_refused(store, nodes, embed_model):
    with pytest.raises(ConfigError, match="no embedding"):
        store.add([TextNode(text="no vector")])
    with pytest.raises(ConfigError, match="'hybrid'"):
        store.query(query(embed_model, mode=VectorStoreQueryMode.HYBRID))
    with pytest.raises(ConfigError, match="embed_model"):
        store.query(VectorStoreQuery(query_str="x"))
    store.add(nodes)
    with pytest.raises(ConfigError, match="dimensions"):
        store.query(VectorStoreQuery(query_embedding=[1.0, 2.0], similarity_top_k=1))
    other = nodes[0].model_copy(update={"id_": "other", "embedding": [1.0, 2.0]})
    with pytest.raises((ConfigError, LibraryMismatchError)):
        store.add([other])
    assert len(store.get_nodes()) == len(nodes)


def test_texts_that_other_programs_keep_in_the_library_are_left_alone(store, nodes, llm, embed_model):
    from ragblend import TextDocument

    vector = embed_model.get_text_embedding("The warranty of the Heron")
    llm.library.texts.add([TextDocument("mine", "How long does the warranty of the Heron last?", {}, vector)])
    store.add(nodes)
    assert "mine" not in store.query(query(embed_model, 9)).ids
    store.clear()
    assert llm.library.texts.ids() == ["mine"]
