"""A collection keeps items under their ids and finds them by their vectors, in every process alike."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ragblend import Collection, Item, Library
from ragblend.errors import ConfigError, LibraryError, StoreError


@pytest.fixture
def library(tmp_path: Path):
    with Library.open(tmp_path / "library") as opened:
        yield opened


@pytest.fixture
def collection(library: Library) -> Collection:
    return library.collection("notes")


def item(id: str, *vector: float, **fields) -> Item:
    return Item(id, f"text of {id}", vector or (1.0, 0.0), **fields)


def ids(found) -> list[str]:
    return [hit.item.id for hit in found]


def test_what_is_added_comes_back_as_it_was(collection):
    added = Item("a", "Text – «ü»\n", (0.5, -2.0), {"year": 2024, "tags": ["x"], "none": None}, "doc", "payload")
    collection.add([added])
    assert collection.get(["b", "a"]) == [added]
    assert list(collection.items()) == [added]
    assert len(collection) == 1


def test_get_keeps_the_order_that_was_asked_for(collection):
    collection.add(item(str(n)) for n in range(1200))
    wanted = [str(n) for n in range(1199, -1, -1)]
    assert [got.id for got in collection.get(wanted)] == wanted
    assert [got.id for got in collection.items()] == sorted(wanted)


def test_the_nearest_come_first_and_ties_by_id(collection):
    collection.add([item("far", 0, 1), item("b", 3, 0), item("a", 1, 0), item("near", 1, 0.1)])
    found = collection.search([2, 0], 3)
    assert ids(found) == ["a", "b", "near"]
    assert [round(hit.score, 3) for hit in found] == [1, 1, 0.995]
    assert ids(collection.search([2, 0], 99)) == ["a", "b", "near", "far"]


def test_a_filter_leaves_others_out_however_near_they_are(collection):
    collection.add(item(f"{n:04}", 1, n / 1000, metadata={"n": n}) for n in range(1500))
    assert ids(collection.search([1, 0], 2, lambda found: found.metadata["n"] >= 1490)) == ["1490", "1491"]
    assert collection.search([1, 0], 2, lambda found: False) == []


def test_an_item_under_the_same_id_is_replaced(collection):
    collection.add([item("a", 1, 0), item("b", 0, 1)])
    collection.search([1, 0], 1)
    collection.add([Item("a", "new", (0, 1))])
    assert len(collection) == 2
    assert [hit.score for hit in collection.search([0, 1], 2)] == [1, 1]
    assert collection.get(["a"])[0].text == "new"


def test_items_are_deleted_by_id_and_found_by_owner(collection):
    collection.add([item("a", owner="x"), item("b", owner="x"), item("c", owner="y")])
    assert [owned.id for owned in collection.owned("x")] == ["a", "b"]
    assert collection.delete(["a", "a", "c", "nothing"]) == 2
    assert ids(collection.search([1, 0], 9)) == ["b"]
    assert collection.delete([]) == 0
    assert collection.holds_text("text of b")
    assert not collection.holds_text("text of a")


def test_an_empty_collection_finds_nothing(collection):
    assert len(collection) == 0
    assert collection.search([1, 2, 3], 5) == []


def test_collections_and_namespaces_are_apart(library, tmp_path):
    library.collection("one").add([item("a")])
    assert len(library.collection("two")) == 0
    with Library.open(tmp_path / "library", namespace="other") as other:
        assert len(other.collection("one")) == 0
    assert len(library.collection("one")) == 1


def test_another_library_object_sees_the_change_and_a_restart_too(library, collection, tmp_path):
    collection.add([item("a")])
    assert ids(collection.search([1, 0], 5)) == ["a"]
    with Library.open(tmp_path / "library") as other:
        other.collection("notes").add([item("b")])
    assert ids(collection.search([1, 0], 5)) == ["a", "b"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (item("a", 1, 2, 3), "2 and 3 dimensions"),
        (item("a", float("nan"), 1), "NaN"),
        (Item("a", "text", ()), "non-empty"),
        (item("a", metadata={"x": object()}), "cannot be kept as JSON"),
        (item("a", metadata={"x": float("inf")}), "cannot be kept as JSON"),
        (item(""), "id is empty"),
    ],
)
def test_a_bad_item_is_refused_and_nothing_is_added(collection, bad, message):
    collection.add([item("there")])
    with pytest.raises(ConfigError, match=message):
        collection.add([item("good"), bad])
    assert [kept.id for kept in collection.items()] == ["there"]


def test_bad_questions_are_refused(collection, library):
    collection.add([item("a")])
    with pytest.raises(ConfigError, match="dimensions"):
        collection.search([1, 2, 3], 1)
    with pytest.raises(ConfigError, match="k must be"):
        collection.search([1, 2], 0)
    with pytest.raises(ConfigError, match="name"):
        library.collection("")


def test_a_vector_of_length_zero_is_near_nothing(collection):
    collection.add([item("zero", 0, 0), item("one", 1, 0)])
    assert [(hit.item.id, hit.score) for hit in collection.search([1, 0], 2)] == [("one", 1), ("zero", 0)]


def test_a_read_only_library_searches_but_adds_nothing(library, collection, tmp_path):
    collection.add([item("a")])
    with Library.open(tmp_path / "library", read_only=True) as reader:
        assert ids(reader.collection("notes").search([1, 0], 1)) == ["a"]
        with pytest.raises(LibraryError, match="read-only"):
            reader.collection("notes").add([item("b")])


def test_after_closing_it_says_so(library, collection):
    library.close()
    with pytest.raises(StoreError, match="closed"):
        collection.search([1, 0], 1)


def test_searches_run_while_items_come_and_go(collection):
    collection.add(item(f"k{n}", 1, n) for n in range(40))
    done, wrong = threading.Event(), []

    def look() -> None:
        while not done.is_set():
            found = ids(collection.search([1, 0], 5))
            if len(found) != 5 or found != sorted(found, key=lambda id: int(id[1:])):
                wrong.append(found)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for n in range(20):
        collection.delete([f"k{n}"])
        collection.add([item(f"k{n}", 1, n)])
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=12), st.integers(1, 5))
def test_search_agrees_with_plain_cosines(library, vectors, k):
    collection = library.collection("random")
    collection.delete([found.id for found in collection.items()])
    collection.add(item(f"{n:02}", *vector) for n, vector in enumerate(vectors))
    query = np.array([2.0, 1.0])

    def cosine(vector) -> float:
        length = np.linalg.norm(vector)
        return round(float(query @ vector / (length * np.linalg.norm(query))), 5) if length else 0.0

    expected = sorted((cosine(np.array(vector)) for vector in vectors), reverse=True)[:k]
    assert [round(hit.score, 5) for hit in collection.search([2, 1], k)] == pytest.approx(expected, abs=2e-5)
