"""Amounts of named resources: absent is 0, nothing is rounded, no argument is changed."""

import pytest

from bizrq.units import resources
from bizrq.units.quantity import NANO, QuantityError
from bizrq.units.resources import Resources


def res(text: str) -> dict[str, int]:
    """Parse `cpu=4 mem=-1` in whole units."""
    return {name: int(amount) * NANO for name, amount in (word.split("=") for word in text.split())}


@pytest.mark.parametrize(
    ("function", "a", "b", "result"),
    [
        (resources.add, "cpu=1", "cpu=2 gpu=3", "cpu=3 gpu=3"),
        (resources.add, "", "", ""),
        (resources.add, "cpu=1", "cpu=-1", "cpu=0"),
        (resources.subtract_floor, "cpu=5 gpu=1", "cpu=2", "cpu=3 gpu=1"),
        (resources.subtract_floor, "cpu=1", "cpu=2 gpu=9", "cpu=0"),
        (resources.larger, "cpu=1 gpu=5", "cpu=2", "cpu=2 gpu=5"),
        (resources.larger, "cpu=-1", "", "cpu=0"),
        (resources.smaller, "cpu=1 gpu=5", "cpu=2", "cpu=1 gpu=0"),
        (resources.smaller, "", "cpu=2", "cpu=0"),
        (resources.growth, "cpu=5 gpu=1", "cpu=2 gpu=4", "cpu=3"),
        (resources.growth, "cpu=1", "", "cpu=1"),
        (resources.growth, "", "cpu=1", ""),
        (resources.growth, "cpu=1 gpu=0", "cpu=1", ""),
    ],
)
def test_operations_on_two_amounts(function, a: str, b: str, result: str) -> None:
    """Both arguments are unchanged."""
    left, right = res(a), res(b)
    assert function(left, right) == res(result)
    assert (left, right) == (res(a), res(b))


def test_many_amounts_are_summed_exactly() -> None:
    """A third of a core times three million is exact, not about a million cores."""
    third: Resources = {"limits.cpu": 333_333_333}
    assert resources.total(third for _ in range(3000)) == {"limits.cpu": 999_999_999_000}
    assert resources.scale(third, 3_000_000) == {"limits.cpu": 999_999_999_000_000}
    assert resources.total([]) == {}
    assert resources.scale(third, 0) == {"limits.cpu": 0}


def test_names_can_be_removed() -> None:
    """Names are removed by name, or because their amount is 0."""
    assert resources.restrict(res("cpu=1 gpu=0 pods=2"), {"cpu", "gpu", "count/pods"}) == res("cpu=1 gpu=0")
    assert resources.nonzero(res("cpu=1 gpu=0 pods=-2")) == res("cpu=1 pods=-2")


def test_amounts_are_parsed_and_formatted_sorted() -> None:
    """They are formatted as in a status, in the units of the resource."""
    read = resources.parse_resources({"pods": 3, "limits.memory": "1.5Gi", "limits.cpu": 0.5})
    assert read == {"limits.cpu": NANO // 2, "limits.memory": 3 * 2**29 * NANO, "pods": 3 * NANO}
    assert list(resources.text_of(read).items()) == [
        ("limits.cpu", "500m"),
        ("limits.memory", "1536Mi"),
        ("pods", "3"),
    ]


def test_a_bad_amount_is_rejected_with_its_name() -> None:
    """The message has the first name in order."""
    with pytest.raises(QuantityError, match=r"^limits\.cpu: 'x' "):
        resources.parse_resources({"pods": "y", "limits.cpu": "x"})
