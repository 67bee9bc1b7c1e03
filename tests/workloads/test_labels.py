"""The models that a child has of its payer, and those of its own."""

from __future__ import annotations

import pytest

from bizrq.workloads.labels import MODEL_LABELS, models_of, with_models

CPU, GPU = MODEL_LABELS["cpu"], MODEL_LABELS["gpu"]


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, (("cpu", "A4"),)),
        ({CPU: "T4"}, (("cpu", "T4"),)),
        ({GPU: "A100"}, (("cpu", "A4"), ("gpu", "A100"))),
        ({CPU: ""}, (("cpu", "A4"),)),
    ],
    ids=["none", "another model", "a model of something else", "an empty one names none"],
)
def test_a_child_has_the_models_of_its_payer_where_it_names_none(
    own: dict[str, str], expected: tuple[tuple[str, str], ...]
) -> None:
    child = {"kind": "Pod", "metadata": {"name": "p", "labels": {"app": "x", **own}}}
    found = with_models(child, (("cpu", "A4"),))
    assert models_of(found) == expected
    assert found["metadata"]["labels"]["app"] == "x"
    assert child["metadata"]["labels"] == {"app": "x", **own}
