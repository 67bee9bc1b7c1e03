"""The records of remembered payers as the controller has them: what is stored, and what is to be stored next.

This file alone decides which version of a record is the newest known, and how one is written. `releases` decides who is
remembered because of a change, `controller.usage.payer_lines` who is because of a count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import structlog

from bizrq.api import payers as wire
from bizrq.api.group import GroupObject
from bizrq.api.payers import GroupReference, PayersMeta, PayersObject, PayersRecordUnreadable, PayersStatus
from bizrq.kube.client import AlreadyExists, Conflict, KubeClient, NotFound
from bizrq.kube.informer import Informer
from bizrq.store.groups import without_managed_fields
from bizrq.store.payers import PAYERS
from bizrq.workloads.ownership.memory import (
    NO_LINES,
    KnownLines,
    Memory,
    PayersUnreadable,
    fits,
    parse_payer,
    parse_payers,
    payer_lines,
)
from bizrq.workloads.ownership.runs_on import RunsOn, problem_of, readable, runs_on_lines

log = structlog.get_logger(__name__)

Object = dict[str, Any]

_TIMEOUT = 10.0
#: As many changes of one group are remembered before they are stored. A standby controller stores none.
_MOST_PENDING = 10_000


@dataclass(frozen=True, slots=True)
class StoredPayers:
    """The record of one group as it is stored. `problem` says why it cannot be trusted as a whole; "" if it can."""

    uid: str = ""
    revision: int = 0
    group_uid: str = ""
    payers: Mapping[str, Memory] = field(default_factory=dict)
    counted_at: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    #: The lines of `payers`; none if there is a problem.
    known: KnownLines = NO_LINES
    runs_on: Mapping[str, RunsOn] = field(default_factory=dict)


_NONE = StoredPayers()


class RememberedPayers:
    """All remembered payers by uid, stored or not."""

    def __init__(self, client: KubeClient, on_change: Callable[[str, Collection[str]], None]) -> None:
        """`on_change` is called with a group and the uids whose payers another writer of its record changed."""
        self._client = client
        self._on_change = on_change
        self._stored: dict[str, StoredPayers] = {}
        #: What is to be stored, by group and uid.
        self._pending: dict[str, dict[str, Memory]] = {}
        #: Both, by uid and group.
        self._known: dict[str, dict[str, Memory]] = {}
        #: The uids of which a group remembers something else since that was asked for, by group.
        self._changes: dict[str, set[str]] = {}
        #: The uids of what payers that are gone left, by the place of the payer.
        self._left: dict[str, set[str]] = {}
        self.informer = Informer(
            client, PAYERS, on_change=self._changed, on_rollback=self._start_over, transform=without_managed_fields
        )

    def get(self, uid: str, /) -> Memory | None:
        """Return the payer that is remembered for an object. Of several groups the last one paid."""
        found = self._known.get(uid)
        if not found:
            return None
        return max(found.values(), key=lambda memory: (memory.since, memory.group))

    def left_of(self, place: str) -> Collection[str]:
        """Return the uids of payers and objects that are remembered as gone with the payer of this place."""
        return tuple(self._left.get(place, ()))

    def __iter__(self) -> Iterator[str]:
        """Yield the uids of all remembered payers."""
        yield from tuple(self._known)

    def of(self, group: str) -> dict[str, Memory]:
        """Return all that is remembered of a group, by uid."""
        return {**self.stored(group).payers, **self.pending(group)}

    def in_group(self, group: str, uid: str) -> Memory | None:
        """Return what one group remembers of a uid."""
        return self._known.get(uid, {}).get(group)

    def stored(self, group: str) -> StoredPayers:
        return self._stored.get(group, _NONE)

    def pending(self, group: str) -> Mapping[str, Memory]:
        """Return what is remembered of a group and not stored yet."""
        return self._pending.get(group, {})

    def take_changes(self, group: str) -> Collection[str] | None:
        """Return the uids of which the group remembers something else since the last call. None for all."""
        found, self._changes[group] = self._changes.get(group), set()
        return found

    def remember(self, uid: str, memory: Memory) -> None:
        """Remember a payer, in place of what its group remembers of this uid. The next recount stores it."""
        if self.in_group(memory.group, uid) == memory:
            return
        waiting = self._pending.setdefault(memory.group, {})
        waiting[uid] = memory
        self._refresh(memory.group, uid)
        while len(waiting) > _MOST_PENDING:
            self._drop_pending(memory.group, next(iter(waiting)))

    def forget(self, group: str) -> None:
        """Forget what is not stored of a group that is gone."""
        self._changes.pop(group, None)
        for uid in tuple(self.pending(group)):
            self._drop_pending(group, uid)

    async def write(
        self,
        group: GroupObject,
        dropped: Collection[str],
        counted_at: Mapping[str, str],
        runs_on: Mapping[str, RunsOn] = MappingProxyType({}),
    ) -> str:
        """Store what is remembered of a group, without the dropped uids, and the pods that run on though they are gone.

        Return why not all of it could be stored. Raise Conflict after reading the stored record, other ApiErrors, and
        Unreachable.
        """
        stored = await self._own(group)
        if stored.problem:
            return stored.problem
        waiting = dict(self.pending(group.name))
        wanted = {uid: memory for uid, memory in {**stored.payers, **waiting}.items() if uid not in dropped}
        problem, lines = "", payer_lines(wanted, stored.known)
        if not fits(lines):
            problem = "the record is full"
            wanted = {uid: memory for uid, memory in wanted.items() if uid in stored.payers}
            lines = payer_lines(wanted, stored.known)
            if not fits(lines):
                wanted = {uid: memory for uid, memory in stored.payers.items() if uid not in dropped}
                lines = payer_lines(wanted, stored.known)
        vanished = runs_on_lines(runs_on)
        if wanted != stored.payers or vanished != runs_on_lines(stored.runs_on):
            await self._replace(group.name, stored, PayersStatus(lines, vanished, dict(counted_at)))
        for uid, memory in waiting.items():
            if (uid in dropped or wanted.get(uid) == memory) and self.pending(group.name).get(uid) == memory:
                self._drop_pending(group.name, uid)
        return problem

    async def _own(self, group: GroupObject) -> StoredPayers:
        """Return the group's record, created if there is none. Another group may have had the name before."""
        stored = self._stored.get(group.name)
        if stored is not None and stored.group_uid == group.metadata.uid:
            return stored
        if stored is not None and stored.group_uid:
            try:
                await self._client.delete(PAYERS, group.name, resource_version=str(stored.revision))
            except NotFound:
                pass
            except Conflict:
                await self._read(group.name)
                raise
            self._forget(group.name)
        owner = GroupReference(group.name, group.metadata.uid)
        record = PayersObject(PayersMeta(group.name, owner_references=[owner]))
        try:
            made = await self._client.create(PAYERS, wire.to_json(record), timeout=_TIMEOUT)
        except AlreadyExists:
            await self._read(group.name)
            raise Conflict(409, "AlreadyExists", f"the payers of {group.name} were made by another") from None
        return self._learn(made)

    async def _replace(self, name: str, stored: StoredPayers, status: PayersStatus) -> None:
        owner = GroupReference(name, stored.group_uid)
        metadata = PayersMeta(name, stored.uid, str(stored.revision), [owner])
        record = PayersObject(metadata, status)
        try:
            written = await self._client.replace(PAYERS, wire.to_json(record), subresource="status")
        except Conflict:
            await self._read(name)
            raise
        except NotFound:
            self._forget(name)
            raise
        self._learn(written)

    async def _read(self, name: str) -> None:
        try:
            self._learn(await self._client.get(PAYERS, name))
        except NotFound:
            self._forget(name)

    # The watch.

    def _changed(self, old: Object | None, new: Object | None) -> None:
        name = (new or old or {})["metadata"]["name"]
        before = self.stored(name)
        if new is None:
            if before.uid not in ("", (old or {})["metadata"]["uid"]):
                return
            self._forget(name)
        elif before.revision >= int(new["metadata"]["resourceVersion"]):
            return
        else:
            self._learn(new)
        after = self.stored(name).payers
        changed = _changed(before.payers, after)
        for uid in before.payers.keys() - after.keys():
            # Another controller found that nothing refers to it.
            self._drop_pending(name, uid)
        self._on_change(name, changed)

    def _start_over(self, before: int, now: int) -> None:
        """Drop everything and read the informer's: the API server's store was restored to an older revision."""
        self._stored.clear()
        self._pending.clear()
        self._known.clear()
        self._changes.clear()
        self._left.clear()
        for obj in self.informer.store.values():
            self._learn(obj)

    def _learn(self, obj: Object) -> StoredPayers:
        name = obj["metadata"]["name"]
        known = self.stored(name)
        found = _stored(obj, known.known)
        if known.uid == found.uid and known.revision > found.revision:
            return known
        if found.problem:
            log.error("record of payers cannot be read", group=name, error=found.problem)
        self._stored[name] = found
        for uid in _changed(known.payers, found.payers):
            self._refresh(name, uid)
        return found

    def _forget(self, name: str) -> None:
        known = self._stored.pop(name, _NONE)
        for uid in known.payers:
            self._refresh(name, uid)

    def _drop_pending(self, group: str, uid: str) -> None:
        waiting = self._pending.get(group, {})
        waiting.pop(uid, None)
        if not waiting:
            self._pending.pop(group, None)
        self._refresh(group, uid)

    def _refresh(self, group: str, uid: str) -> None:
        """Bring what is known of a uid in line with what is stored and pending."""
        if group in self._changes:
            self._changes[group].add(uid)
        memory = self.pending(group).get(uid) or self.stored(group).payers.get(uid)
        found = self._known.setdefault(uid, {})
        for known in found.values():
            left = self._left.get(known.place, set())
            left.discard(uid)
            if not left:
                self._left.pop(known.place, None)
        if memory is not None:
            found[group] = memory
        else:
            found.pop(group, None)
        for known in found.values():
            if known.gone is not None:
                self._left.setdefault(known.place, set()).add(uid)
        if not found:
            del self._known[uid]


def _changed(before: Mapping[str, Memory], after: Mapping[str, Memory]) -> set[str]:
    """Return the uids of which one remembers something else than the other."""
    found = {uid for uid, memory in after.items() if (known := before.get(uid)) is not memory and known != memory}
    return found | (before.keys() - after.keys())


def _stored(obj: Object, known: KnownLines) -> StoredPayers:
    """Return a record as it is stored. Of one that cannot be read, the lines that can be."""
    metadata = obj["metadata"]
    name, revision = metadata["name"], int(metadata["resourceVersion"])
    problem = ""
    try:
        record = wire.from_dict(obj)
    except PayersRecordUnreadable as error:
        return StoredPayers(metadata["uid"], revision, problem=str(error))
    lines = record.status.payers
    try:
        payers = parse_payers(name, lines, known)
        known = KnownLines(dict(zip(payers, lines, strict=True)), payers)
    except PayersUnreadable as error:
        problem, payers, known = str(error), _readable(name, lines), NO_LINES
    vanished = record.status.vanished
    return StoredPayers(
        metadata["uid"],
        revision,
        record.group_uid,
        payers,
        record.status.counted_at,
        problem or problem_of(vanished),
        known,
        readable(vanished),
    )


def _readable(group: str, lines: Collection[str]) -> dict[str, Memory]:
    """Return the lines that can be read, the first of each uid."""
    found: dict[str, Memory] = {}
    for line in lines:
        try:
            uid, memory = parse_payer(group, line)
        except PayersUnreadable:
            continue  # The record's problem names it.
        found.setdefault(uid, memory)
    return found
