"""The vector store beyond LangChain's suite: filters, scores, MMR, indexing, and its bad inputs."""

from __future__ import annotations

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.indexing import InMemoryRecordManager, index

from langchain_ragblend import ChatRagBlend, RagBlendVectorStore
from ragblend.errors import ConfigError, LibraryMismatchError

COLOURS = {"red": (1.0, 0.0), "orange": (0.9, 0.2), "blue": (0.0, 1.0), "violet": (0.4, 0.9)}


class Colours(Embeddings):
    """Two dimensions, by the colour that a text begins with; not of length one."""

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text):
        x, y = COLOURS.get(text.split()[0], (1.0, 1.0))
        return [3 * x, 3 * y]


@pytest.fixture
def store(engine, tmp_path):
    made = RagBlendVectorStore(tmp_path / "store.rag", engine=engine, embedding=Colours())
    documents = [
        Document(f"{name} is a colour, one of the four of this test", id=name, metadata={"warm": x > y})
        for name, (x, y) in COLOURS.items()
    ]
    made.add_documents(documents)
    yield made
    made.close()


def ids(documents):
    return [document.id for document in documents]


def test_nearest_first_with_cosines(store):
    scored = store.similarity_search_with_score("red", k=2)
    assert ids(document for document, _ in scored) == ["red", "orange"]
    assert scored[0][1] == pytest.approx(1)
    assert ids(store.similarity_search_by_vector([0.0, 5.0], k=2)) == ["blue", "violet"]
    relevances = store.similarity_search_with_relevance_scores("red", k=4, score_threshold=0.9)
    assert ids(document for document, _ in relevances) == ["red", "orange"]


@pytest.mark.parametrize("filter", [{"warm": False}, lambda document: not document.metadata["warm"]])
def test_a_filter_is_metadata_or_a_function(store, filter):
    assert ids(store.similarity_search("red", k=4, filter=filter)) == ["violet", "blue"]
    retriever = store.as_retriever(search_kwargs={"filter": filter, "k": 1})
    assert ids(retriever.invoke("red")) == ["violet"]


def test_a_filter_on_what_is_not_there_finds_nothing(store):
    assert store.similarity_search("red", filter={"cold": None}) == []


def test_mmr_prefers_what_differs(store):
    assert ids(store.similarity_search("red", k=2)) == ["red", "orange"]
    assert ids(store.max_marginal_relevance_search("red", k=2, lambda_mult=0.1)) == ["red", "blue"]
    retriever = store.as_retriever(search_type="mmr", search_kwargs={"k": 2, "fetch_k": 2})
    assert set(ids(retriever.invoke("red"))) == {"red", "orange"}


def test_what_it_holds_survives_closing(store, engine, tmp_path):
    store.close()
    again = RagBlendVectorStore(tmp_path / "store.rag", engine=engine, embedding=Colours())
    assert ids(again.similarity_search("blue", k=1)) == ["blue"]
    again.close()


def test_its_documents_are_hits_in_a_chain(store):
    llm = ChatRagBlend(library=store.library, max_tokens=4)
    found = store.similarity_search("red", k=2)
    for told in (
        llm.invoke("\n\n".join(d.page_content for d in found) + "\n\nWhich?").response_metadata,
        llm.invoke("Which?", documents=found).response_metadata,
    ):
        assert (told["hits"], told["misses"]) == (2, 0)


def test_langchains_indexing_skips_and_removes(engine):
    store = RagBlendVectorStore(engine=engine, embedding=DeterministicFakeEmbedding(size=4))
    manager = InMemoryRecordManager(namespace="test")
    manager.create_schema()
    first = [Document(f"text {n}", metadata={"source": str(n)}) for n in range(3)]

    def run(documents):
        return index(documents, manager, store, cleanup="full", source_id_key="source", key_encoder="sha256")

    assert run(first)["num_added"] == 3
    assert run(first)["num_skipped"] == 3
    assert run(first[:1]) == {"num_added": 0, "num_updated": 0, "num_skipped": 1, "num_deleted": 2}
    assert [document.page_content for document in store.similarity_search("text", k=5)] == ["text 0"]
    store.close()


def test_from_documents_makes_a_store_of_its_own(engine):
    store = RagBlendVectorStore.from_documents([Document("red wine", id="r")], Colours(), engine=engine)
    assert ids(store.similarity_search("red")) == ["r"]
    folder = store.library.folder
    store.close()
    assert not folder.exists()


def test_all_documents_can_be_deleted(store):
    assert store.delete()
    assert store.similarity_search("red") == []
    assert store.library.verify().ok


def test_files_of_the_library_are_found_with_their_places(library, tmp_path):
    (tmp_path / "warranty.md").write_text("# Warranty\n\nThe warranty of the robot lasts two years.\n")
    library.add([tmp_path / "warranty.md"])
    store = RagBlendVectorStore(library)
    store.add_texts(["The battery is charged in ninety minutes."], ids=["b"])
    first, second = store.similarity_search("How long does the warranty last?", k=2)
    assert first.page_content == "[Warranty]\nThe warranty of the robot lasts two years."
    assert first.metadata["source"] == str(tmp_path / "warranty.md")
    assert second.id == "b"
    told = ChatRagBlend(library=library, max_tokens=4).invoke("How long?", documents=[first, second]).response_metadata
    assert (told["hits"], told["misses"]) == (2, 0)


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ({"texts": ["red", " "]}, "is empty"),
        ({"texts": ["red"], "metadatas": [{}, {}]}, "1 texts but 2 metadatas"),
        ({"texts": ["red"], "ids": ["1", "2"]}, "1 texts but 2 ids"),
        ({"texts": ["red"], "metadatas": [{"when": object()}]}, "no JSON"),
        ({"texts": ["red"], "shards": 3}, "unknown arguments: shards"),
    ],
)
def test_bad_documents_are_refused(store, arguments, cause):
    with pytest.raises(ConfigError, match=cause):
        store.add_texts(**arguments)
    assert len(store.library.texts.ids()) == 4


def test_bad_questions_are_refused(store):
    with pytest.raises(ConfigError, match="k must be at least 1"):
        store.similarity_search("red", k=0)
    with pytest.raises(ConfigError, match="3 dimensions"):
        store.similarity_search_by_vector([1.0, 0.0, 0.0])
    with pytest.raises(ConfigError, match="a filter is a dict"):
        store.similarity_search("red", filter="warm")


def test_other_embeddings_are_refused(store, engine, tmp_path):
    store.close()
    other = RagBlendVectorStore(tmp_path / "store.rag", engine=engine, embedding=DeterministicFakeEmbedding(size=2))
    with pytest.raises(LibraryMismatchError, match="Colours"):
        other.similarity_search("red")
    other.close()


def test_an_open_library_has_its_own_embedder(library):
    with pytest.raises(ConfigError, match="give no others"):
        RagBlendVectorStore(library, embedding=Colours())


@pytest.mark.parametrize(("piece_of", "before"), [("source", 1), (None, 0)])
def test_what_is_added_in_a_row_with_one_source_is_of_one_document(engine, piece_of, before):
    texts = ["red is the first colour of this document", "blue is its second colour, and its last one"]
    store = RagBlendVectorStore.from_texts(
        texts, Colours(), [{"source": "colours.md"}] * 2, engine=engine, piece_of=piece_of
    )
    ids = engine.template.text_ids
    context = ids(f"{texts[0]}\n\n") * before
    [hit] = store.library.search_vector([0.0, 1.0], k=1)
    assert hit.segment.key == engine.chunk_key("default", ids(texts[1]), context_ids=context)
    store.close()


def test_what_says_so_must_be_a_key_or_a_function(engine):
    with pytest.raises(ConfigError, match="piece_of is a metadata key"):
        RagBlendVectorStore(engine=engine, embedding=Colours(), piece_of=3)


def test_metadata_that_are_none_are_refused_by_name(store):
    with pytest.raises(ConfigError, match="metadata of text 'x' are no JSON"):
        store.add_texts(["a text"], [None], ids=["x"])
