"""Objects are packed in memory, and come out as they went in."""

from __future__ import annotations

import pytest

from bizrq.kube.packed import LEAST, PackedObject, packing, unpacking
from bizrq.kube.store import Kept, Object, Store


def deployment(entries: int) -> Object:
    env = [{"name": f"A{number}"} for number in range(entries)]
    return {
        "metadata": {"name": "web", "namespace": "default", "uid": "u1", "resourceVersion": "7", "labels": {"a": "b"}},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [{"name": "c", "env": env}]}}},
    }


def untouched(obj: Object) -> Object:
    return obj


def test_an_ordinary_object_is_kept_as_it_is() -> None:
    ordinary = deployment(10)
    assert packing(untouched)(ordinary) is ordinary


def test_an_object_is_packed_after_its_transform() -> None:
    def without_labels(obj: Object) -> Object:
        return {**obj, "metadata": {key: value for key, value in obj["metadata"].items() if key != "labels"}}

    large = deployment(60_000)
    kept = packing(without_labels)(large)
    assert isinstance(kept, PackedObject)
    assert (kept.uid, kept.namespace, kept.name, kept.revision) == ("u1", "default", "web", 7)
    assert kept.plain() == without_labels(large)
    assert len(kept.packed) < 150 * LEAST


def test_many_short_fields_that_are_alike_are_packed() -> None:
    """They are written shortly, and take as much memory as others."""
    many = deployment(1)
    many["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "a"} for _ in range(400)]
    kept = packing(untouched)(many)
    assert isinstance(kept, PackedObject)
    assert kept.plain() == many


@pytest.mark.parametrize("levels", [300, 800])
def test_many_levels_are_packed_too(levels: int) -> None:
    large = deployment(60_000)
    inner: Object = {}
    for _ in range(levels):
        inner = {"a": inner}
    large["status"] = inner
    kept = packing(untouched)(large)
    assert isinstance(kept, PackedObject)
    assert kept.plain() == large


def test_a_store_finds_packed_objects_and_reads_them_whole() -> None:
    seen: list[tuple[Object | None, Object | None]] = []
    store = Store(
        {"label": lambda obj: [obj["metadata"]["labels"]["a"]]}, on_write=unpacking(lambda *c: seen.append(c))
    )
    packed, large = packing(untouched), deployment(60_000)
    store.put(packed(large))
    assert store.get("web", "default") == store.by_uid("u1") == large
    assert list(store.values()) == list(store.index("label", "b")) == [large]
    moved = {**large, "metadata": {**large["metadata"], "resourceVersion": "8", "labels": {"a": "c"}}}
    kept: Kept = packed(moved)
    store.put(kept)
    assert list(store.index("label", "b")) == []
    assert list(store.index("label", "c")) == [moved]
    store.remove(kept)
    assert list(store.values()) == []
    assert seen == [(None, large), (large, moved), (moved, None)]
