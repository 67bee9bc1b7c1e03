"""How any AdmissionReview is read, and the format of the response."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bizrq.api import review
from bizrq.api.review import MalformedReview
from bizrq.quota.admission import decide
from bizrq.quota.verdict import Denied, Reason, Violation
from tests.support.language import NOW, account, create

REQUEST: dict[str, Any] = {
    "uid": "8f3c",
    "operation": "UPDATE",
    "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
    "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
    "subResource": "scale",
    "name": "web",
    "namespace": "team-a",
    "userInfo": {"username": "ann", "groups": ["dev"], "extra": {"scopes": ["x"]}},
    "object": {"spec": {"replicas": 2}},
    "oldObject": {"spec": {"replicas": 1}},
    "dryRun": True,
    "options": {"kind": "UpdateOptions"},
}


def body(**changes: Any) -> bytes:
    kept = {key: value for key, value in {**REQUEST, **changes}.items() if value is not ...}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": kept}).encode()


def test_a_request_is_read_with_its_objects_unchanged() -> None:
    request = review.decode(body())
    assert (request.uid, request.operation, request.name, request.namespace) == ("8f3c", "UPDATE", "web", "team-a")
    assert (request.kind.group, request.kind.version, request.kind.kind) == ("apps", "v1", "Deployment")
    assert (request.resource.group, request.resource.resource) == ("apps", "deployments")
    assert request.sub_resource == "scale"
    assert request.object == {"spec": {"replicas": 2}}
    assert request.old_object == {"spec": {"replicas": 1}}
    assert request.dry_run is True
    assert request.user_info is not None
    assert request.user_info.username == "ann"


def test_omitted_and_null_fields_are_empty() -> None:
    left_out = dict.fromkeys(["subResource", "name", "namespace", "userInfo", "object", "oldObject", "dryRun"], ...)
    bare = review.decode(body(**left_out))
    null = review.decode(body(**{**left_out, "object": None, "oldObject": None, "dryRun": None, "userInfo": None}))
    assert bare == null
    assert (bare.object, bare.old_object, bare.sub_resource, bare.name) == (None, None, "", "")


MALFORMED = [
    ("nothing", b"", ""),
    ("not JSON", b"uid=1", ""),
    ("null", b"null", ""),
    ("a list", b"[]", ""),
    ("a string", b'"AdmissionReview"', ""),
    ("no request", b"{}", ""),
    ("a request that is null", b'{"request":null}', ""),
    ("a request that is a list", b'{"request":[]}', ""),
    ("an empty request", b'{"request":{}}', ""),
    ("a truncated body", body()[:-1], ""),
    ("two bodies", body() + body(), ""),
    ("a byte order mark", b"\xef\xbb\xbf" + body(), ""),
    ("UTF-16", body().decode().encode("utf-16"), ""),
    ("a uid that is no text", body(uid=7), ""),
    ("a uid that is null", body(uid=None), ""),
    ("a uid that is empty", body(uid=""), ""),
    ("no uid", body(uid=...), ""),
    ("a uid that is no UTF-8", body(uid="X").replace(b'"X"', b'"\xff"'), ""),
    ("a uid that is half a character", body(uid="X").replace(b'"X"', b'"\\ud800"'), ""),
    ("no operation", body(operation=...), "8f3c"),
    ("an operation that is no text", body(operation=["CREATE"]), "8f3c"),
    ("an unknown operation", body(operation="PATCH"), "8f3c"),
    ("an operation in small letters", body(operation="create"), "8f3c"),
    ("no kind", body(kind=...), "8f3c"),
    ("a kind that is text", body(kind="Deployment"), "8f3c"),
    ("a kind of numbers", body(kind={"group": 1}), "8f3c"),
    ("a kind that no type has", body(kind={"group": "", "version": "v1", "kind": "9" * 254}), "8f3c"),
    ("no resource", body(resource=...), "8f3c"),
    ("a resource of a group that no type has", body(resource={"group": "9" * 4000}), "8f3c"),
    ("a name that is no text", body(name=["web"]), "8f3c"),
    ("a name that is no UTF-8", body(name="X").replace(b'"X"', b'"\xff"'), "8f3c"),
    ("an object that is a list", body(object=[]), "8f3c"),
    ("an object that is text", body(object="x"), "8f3c"),
    ("an old object that is a number", body(oldObject=1), "8f3c"),
    ("an object with text that is no UTF-8", body(object={"a": "X"}).replace(b'"X"', b'"\xc3\x28"'), "8f3c"),
    ("an object with a number beyond all bounds", body(object={"a": "X"}).replace(b'"X"', b"9" * 5000), "8f3c"),
    ("an object with a float beyond all bounds", body(object={"a": "X"}).replace(b'"X"', b"1e99999"), "8f3c"),
    ("an object with NaN", body(object={"a": "X"}).replace(b'"X"', b"NaN"), ""),
    ("a dry run that is text", body(dryRun="true"), "8f3c"),
    ("a user who is text", body(userInfo="ann"), "8f3c"),
    ("objects in objects without end", body(object={"a": "X"}).replace(b'"X"', b'{"a":' * 100_000), ""),
    ("lists in lists without end", b"[" * 1_000_000, ""),
]


@pytest.mark.parametrize(("why", "sent", "uid"), MALFORMED, ids=[row[0] for row in MALFORMED])
def test_a_body_that_is_no_review_is_malformed_and_keeps_its_uid(why: str, sent: bytes, uid: str) -> None:
    with pytest.raises(MalformedReview) as found:
        review.decode(sent)
    assert found.value.uid == uid
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 400


def attempt(sent: bytes) -> None:
    """Assert that the body is a request with a uid or malformed, and that both get a response."""
    try:
        uid = review.decode(sent).uid
    except MalformedReview as malformed:
        uid = malformed.uid
        json.loads(review.malformed(uid, str(malformed)))
    else:
        assert uid
        json.loads(review.allowed(uid))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_review_or_malformed(sent: bytes) -> None:
    attempt(sent)


@given(st.integers(0, len(body())), st.binary(max_size=6), st.integers(0, 40))
def test_any_garbled_review_is_a_review_or_malformed(at: int, garbage: bytes, cut: int) -> None:
    attempt(body()[:at] + garbage + body()[at + cut :])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(REQUEST)), JSON)
def test_any_value_in_any_field_is_a_review_or_malformed(key: str, value: object) -> None:
    attempt(body(**{key: value}))


# -- Answers -----------------------------------------------------------------------------------------------------------


def response(answer: bytes) -> dict[str, Any]:
    """Return the response of an answer; the rest is the same in all answers."""
    found = json.loads(answer)
    assert set(found) == {"apiVersion", "kind", "response"}
    assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    return found["response"]


def test_an_allowed_response_has_only_the_uid() -> None:
    assert response(review.allowed("8f3c")) == {"uid": "8f3c", "allowed": True}


def test_an_allowed_response_may_have_warnings() -> None:
    assert response(review.allowed("8f3c", ["over quota"])) == {
        "uid": "8f3c",
        "allowed": True,
        "warnings": ["over quota"],
    }


def test_a_refusal_has_the_message_for_kubectl_and_its_resources() -> None:
    verdict = decide(account("nlp cpu=10 gpu=1", "cpu=8 gpu=1"), create("web", "cpu=4 gpu=1"), NOW)
    assert isinstance(verdict, Denied)
    assert response(review.denied("8f3c", verdict)) == {
        "uid": "8f3c",
        "allowed": False,
        "status": {
            "code": 403,
            "reason": "Forbidden",
            "message": verdict.message,
            "details": {
                "causes": [
                    {"reason": "QuotaExceeded", "message": name, "field": name}
                    for name in ("limits.cpu", "requests.nvidia.com/gpu")
                ]
            },
        },
    }


@pytest.mark.parametrize(
    ("reason", "code", "expected"),
    [
        (Reason.NO_GROUP, 403, "Forbidden"),
        (Reason.MALFORMED, 422, "Invalid"),
        (Reason.IMMUTABLE, 422, "Invalid"),
    ],
)
def test_a_refusal_without_numbers_has_no_details(reason: Reason, code: int, expected: str) -> None:
    answer = response(review.denied("8f3c", Denied(reason, "because")))
    assert answer["status"] == {"code": code, "reason": expected, "message": "because"}


@pytest.mark.parametrize("reason", [Reason.FULL, Reason.TIMEOUT])
def test_a_retryable_refusal_says_after_how_many_seconds(reason: Reason) -> None:
    answer = response(review.denied("8f3c", Denied(reason, "try again")))
    assert answer == {
        "uid": "8f3c",
        "allowed": False,
        "status": {
            "code": 429,
            "reason": "TooManyRequests",
            "message": "try again",
            "details": {"retryAfterSeconds": 1},
        },
    }


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_response(reason: Reason) -> None:
    status = response(review.denied("8f3c", Denied(reason, "because")))["status"]
    known = {(403, "Forbidden"), (409, "AlreadyExists"), (422, "Invalid"), (429, "TooManyRequests")}
    assert (status["code"], status["reason"]) in known


def test_malformed_reviews_and_internal_errors_are_refused_under_their_uid() -> None:
    assert response(review.malformed("8f3c", "no")) == {
        "uid": "8f3c",
        "allowed": False,
        "status": {"code": 400, "reason": "BadRequest", "message": "no"},
    }
    assert response(review.failed("8f3c", "no")) == {
        "uid": "8f3c",
        "allowed": False,
        "status": {"code": 500, "reason": "InternalError", "message": "no"},
    }


@pytest.mark.parametrize("text", ["a\x1b[31mb", "a\u202eb", "a\x9bb", "a\nError: b", "a\r\nb", "a\tb", "a\x00b"])
def test_every_text_of_an_answer_is_one_line_that_no_terminal_obeys(text: str) -> None:
    refusal = Denied(Reason.MALFORMED, text, (Violation(text, 1, 1, 1),))
    answers = (review.allowed("u", [text]), review.denied("u", refusal), review.malformed("u", text))
    for answer in (*answers, review.failed("u", text)):
        response = json.loads(answer)["response"]
        status = response.get("status", {})
        causes = status.get("details", {}).get("causes", ())
        told = [*response.get("warnings", ()), *([status["message"]] if status else [])]
        for shown in (*told, *(cause["message"] for cause in causes), *(cause["field"] for cause in causes)):
            assert shown.isprintable(), shown
            assert shown.startswith("a")
            assert shown.endswith("b")


@pytest.mark.parametrize("field", ["name", "namespace"])
@pytest.mark.parametrize("name", [".", "..", "a/b", "../secrets/x", "a%2fb"])
def test_a_name_that_would_leave_its_path_is_malformed(field: str, name: str) -> None:
    with pytest.raises(MalformedReview, match=f"request.{field} .* is no name of an object") as raised:
        review.decode(body(**{field: name}))
    assert raised.value.uid == "8f3c"
