"""The ports of admission: the reads and writes that the webhooks need from a cluster.

This file alone decides what admission may ask and write. The stores and the client of this project implement the ports
for a real cluster, and a dry run implements them in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from bizrq.api.group import GroupObject
from bizrq.api.review import UserInfo
from bizrq.kube.client import Resource
from bizrq.workloads.lookup import Lookup, Reference
from bizrq.workloads.ownership.memory import Memory

Object = dict[str, Any]


class GroupReader(Protocol):
    """Read the stored groups. A `timeout` is in seconds."""

    def cached(self, name: str) -> GroupObject | None:
        """Return the newest known version of a group. It may allow a write, but never refuse one."""
        ...

    def values(self) -> Collection[GroupObject]:
        """Return the newest known version of each group."""
        ...

    @property
    def is_complete(self) -> bool:
        """Return False where there may be groups that may not be read."""
        ...

    @property
    def revision(self) -> int:
        """Return a revision of which, or a later one, each known version of a group is."""
        ...

    async def read(self, name: str, timeout: float) -> GroupObject | None:
        """Return the stored group, read now, or None if it does not exist. Raise ApiError or Unreachable."""
        ...

    async def children(self, name: str, timeout: float | None = None) -> list[GroupObject]:
        """Return the stored children of a group, read now. Raise ApiError or Unreachable."""
        ...

    async def wait_for_change(self, name: str, timeout: float) -> None:
        """Return when a newer version of the group is known, or after `timeout` seconds."""
        ...


class GroupWriter(GroupReader, Protocol):
    """Read the stored groups and write their status."""

    async def write_status(self, name: str, body: bytes, timeout: float) -> GroupObject:
        """Replace the status of the version that `body` names, and return the stored group.

        Raise Conflict, NotFound or another ApiError. After Unreachable the outcome is unknown.
        """
        ...

    async def merge_status(self, name: str, body: bytes, timeout: float) -> GroupObject:
        """Merge a patch into the status of whatever version is stored, and return the stored group.

        Raise the same errors as `write_status`.
        """
        ...


class ObjectReader(Protocol):
    """Read stored objects of any kind. A `timeout` is in seconds."""

    async def get(
        self, resource: Resource, name: str, namespace: str | None = None, *, timeout: float | None = None
    ) -> Object:
        """Return one stored object. Raise NotFound or another ApiError, or Unreachable."""
        ...

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str | None = None,
        field_selector: str | None = None,
        limit: int = 500,
        timeout: float | None = None,
        transform: Callable[[Object], Any] | None = None,
        mean: int | None = None,
        current: bool = True,
    ) -> tuple[list[Object], str]:
        """Return all objects and the one resourceVersion of the read. Raise ApiError or Unreachable.

        Unless `current`, they are what the API server's cache has, which may be behind.
        AnswerTooLarge for a large list whose objects have more than `mean` bytes on average.
        """
        ...


class AccessReviewer(Protocol):
    """Ask the cluster's authorizers about a user."""

    async def may(self, user: UserInfo | None, verb: str, group: str, timeout: float) -> bool:
        """Return True if the user has this verb on the group of this name. No user has no right.

        Raise ApiError or Unreachable. `timeout` is in seconds.
        """
        ...


class PayerMemory(Protocol):
    """Answer which group paid for an object whose owner is gone or released it."""

    def get(self, uid: str, /) -> Memory | None:
        """Return the payer that is remembered for the object with this uid, or for what that object made.

        Of a payer that stands, `gone` is None, or it is not remembered here.
        """
        ...

    def left_in(self, namespace: str) -> bool:
        """Return True where a payer of a namespace is gone, or released an object, and something of it is left."""
        ...


class ReferenceLookup(Lookup, Protocol):
    """A lookup of referenced objects that also states where its answers come from."""

    @property
    def has_read(self) -> bool:
        """Return True if an answer depends on an object that no watch keeps current."""
        ...

    @property
    def watched(self) -> Collection[Reference]:
        """Return the references that were answered from a watch, which may be behind."""
        ...


class ReferenceReader(Protocol):
    """Resolve the objects to which a workload refers."""

    def resource_of_kind(self, group: str, kind: str) -> Resource | None:
        """Return the resource of a kind that counting may ask for by name; None for any other kind."""
        ...

    @property
    def cached_lookup(self) -> ReferenceLookup:
        """Return a lookup that answers from memory alone."""
        ...

    async def resolve(
        self,
        count: Callable[[Lookup], object],
        timeout: float,
        fresh: Mapping[Reference, Object | None] = MappingProxyType({}),
    ) -> ReferenceLookup:
        """Return a lookup that answers every question of `count`, and read what is not in memory.

        `fresh` holds objects that were read before; they take precedence. Raise ApiError or Unreachable.
        """
        ...

    async def is_current(self, lookup: Lookup, references: Collection[Reference], timeout: float) -> bool:
        """Return True if the lookup answered these as they are stored now. Raise ApiError or Unreachable.

        Otherwise the next lookups have newer answers.
        """
        ...
