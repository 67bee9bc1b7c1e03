"""The kind of the list of makers of pods that are over their group's quota through overlap."""

from __future__ import annotations

from bizrq.api import overlap
from bizrq.api.group import API_GROUP
from bizrq.kube.client import Resource

OVERLAPS = Resource(API_GROUP, "v1alpha1", overlap.PLURAL, overlap.KIND, namespaced=False)
