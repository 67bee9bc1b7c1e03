"""`status.scarcest`, the column of `kubectl get bizrq`."""

from __future__ import annotations

import pytest

from bizrq.builtin import builtin_catalog
from controller.status import scarcest
from tests.support.language import res

CATALOG = builtin_catalog()


@pytest.mark.parametrize(
    ("used", "hard", "text"),
    [
        ("limits.cpu=6 limits.memory=1Gi", "limits.cpu=10 limits.memory=8Gi", "limits.cpu 6/10 (60%)"),
        ("limits.cpu=6 requests.nvidia.com/gpu=12", "limits.cpu=10 requests.nvidia.com/gpu=8",
         "requests.nvidia.com/gpu 12/8 (150%)"),
        ("limits.cpu=1m limits.memory=0", "limits.cpu=10 limits.memory=8Gi", "limits.cpu 1m/10 (1%)"),
        ("pods=1 limits.cpu=10", "pods=0 limits.cpu=10", "limits.cpu 10/10 (100%)"),
        ("limits.cpu=0 limits.memory=0", "limits.cpu=10 limits.memory=8Gi", "limits.cpu 0/10 (0%)"),
        ("limits.cpu=5", "limits.cpu=10 limits.memory=1", "limits.cpu 5/10 (50%)"),
        ("", "limits.cpu=10", ""),
        ("", "", "unlimited"),
    ],
)  # fmt: skip
def test_the_highest_share_of_a_ceiling_is_shown(used: str, hard: str, text: str) -> None:
    """Ties go to the first in the order of display; what is not counted yet is left out."""
    assert scarcest(res(used), res(hard), CATALOG) == text
