"""Answers with objects that are nested deeper than a parser goes."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bizrq.kube.answers import KEPT, parse


def nested(levels: int) -> bytes:
    return b'{"a":' * levels + b"{}" + b"}" * levels


def depth_of(value: object) -> int:
    depth = 0
    while isinstance(value, dict) and value:
        [value] = value.values()
        depth += 1
    return depth


@pytest.mark.parametrize("levels", [1_100, 9_999])
def test_one_deep_object_hides_no_other(levels: int) -> None:
    deep = b'{"name":"deep","odd":"a \\"]}[ b","fields":[%s,7]}' % nested(levels)
    found = parse(b'{"items":[{"name":"a"},%s,{"name":"b"}],"kind":"PodList"}' % deep)
    assert found["kind"] == "PodList"
    assert [item["name"] for item in found["items"]] == ["a", "deep", "b"]
    assert found["items"][1]["odd"] == 'a "]}[ b'
    [fields, number] = found["items"][1]["fields"]
    assert number == 7
    assert depth_of(fields) < KEPT
    # What is left can be written again.
    assert orjson.loads(orjson.dumps(found)) == found


def test_what_a_parser_reads_is_left_as_it_is() -> None:
    assert depth_of(parse(nested(KEPT + 100))) == KEPT + 100


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"a":', nested(2_000)[:-1], b"[" * 5_000])
def test_what_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(orjson.JSONDecodeError):
        parse(body)


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_beside_a_deep_object_everything_is_read_as_without(value: object) -> None:
    body = b"[%s,%s,%s]" % (orjson.dumps(value), nested(1_100), orjson.dumps(value))
    first, _, last = parse(body)
    assert first == last == value
