"""Group commit (docs/design.md): admissions that wait on one group are decided together and stored by one write.

This file alone decides when a promise is written and when an answer may go out. What fits is
`bizrq.quota.admission.decide`'s question.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from bizrq.api import group as wire
from bizrq.api.group import GroupObject, GroupUnreadable
from bizrq.api.review import Request
from bizrq.kube.client import ApiError, Conflict, Forbidden, Invalid, NotFound, Unreachable
from bizrq.quota.account import Account
from bizrq.quota.admission import decide, not_reconciled
from bizrq.quota.change import Charge
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict
from bizrq.store import edit_backoff
from bizrq.store.edit_backoff import EditBackoff
from bizrq.store.ports import GroupWriter
from bizrq.units.names import Catalog

log = structlog.get_logger(__name__)

Check = Callable[[GroupObject], Denied | None]


class Decide(Protocol):
    """The verdict on a charge against a stored group, which `check` may refuse."""

    async def __call__(self, group: str, charge: Charge, deadline: float, check: Check | None = None) -> Verdict: ...


#: Seconds between two status writes of a busy group by one process: the API server pays for each, and what waits is
#: decided together. A lone request never waits. (A person's edit does not depend on this gap:
#: `bizrq.store.edit_backoff`.)
PACE = 0.02
#: The longest that spacing becomes. It grows with each conflict, so that most writes get through however slow: a
#: process that loses again and again would let all who wait there run out of time.
MAX_SPACING = 1.0
#: Seconds that a request waits for a group which no recount has published yet.
PATIENCE = 3.0
#: Requests decided in one write: what fits into MAX_ENTRIES several times over, and into some milliseconds.
BATCH = 500
#: Accounts that are kept from one write to the next: those of the busiest groups.
MAX_ACCOUNTS = 32
_WRITE_TIMEOUT = 10.0
#: Seconds after a conflict within which the next try begins: those who lost together should not meet again.
QUICKLY = 0.02


@dataclass(eq=False, slots=True)
class _Pending:
    charge: Charge
    deadline: float
    check: Check | None
    answer: asyncio.Future[Verdict] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Reserver:
    """Decides charges against stored groups, one line of waiting requests per group."""

    def __init__(
        self,
        store: GroupWriter,
        *,
        catalog: Catalog,
        now: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        clock: Callable[[], float] = time.monotonic,
        pace: float = PACE,
        patience: float = PATIENCE,
    ) -> None:
        """`now` is the time of day in milliseconds; `clock` is what deadlines are in, in seconds."""
        self._store = store
        self._catalog = catalog
        self._now = now
        self._clock = clock
        self._pace = pace
        self._patience = patience
        self._lines: dict[str, list[_Pending]] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._written: dict[str, float] = {}
        self._took: dict[str, float] = {}
        self._spacing: dict[str, float] = {}
        #: Accounts as our own last write left them, by group, with the very object that it made; the newest last.
        self._accounts: dict[str, tuple[GroupObject, Account]] = {}
        #: Whether the last batch of a group held more than one request.
        self._busy: dict[str, bool] = {}
        self._backoff = EditBackoff(clock)
        self.writes = 0
        self.conflicts = 0

    async def reserve(self, group: str, charge: Charge, deadline: float, check: Check | None = None) -> Verdict:
        """The verdict on a charge; where it is Granted, its reservation is stored.

        `deadline` is in seconds of the clock; past it the verdict is "try again". `check` may refuse on the very
        version of the group that the charge is decided on.
        """
        await self._reconciled(group, deadline)
        pending = _Pending(charge, deadline, check)
        self._lines.setdefault(group, []).append(pending)
        if group not in self._workers:
            self._workers[group] = asyncio.create_task(self._serve(group), name=f"reserve {group}")
        try:
            async with asyncio.timeout(max(0.0, deadline - self._clock())):
                return await pending.answer
        except TimeoutError:
            return _out_of_time(group)

    def decider(self, request: Request) -> Decide:
        """How the charges of a request are decided: a dry run leaves nothing."""
        return self.dry_run if request.dry_run else self.reserve

    async def dry_run(self, group: str, charge: Charge, deadline: float, check: Check | None = None) -> Verdict:
        """The verdict that `reserve` would give now; nothing is written (dry runs)."""
        await self._reconciled(group, deadline)
        try:
            stored = await self._store.read(group, self._left(deadline))
        except (ApiError, Unreachable) as error:
            log.warning("group not read", group=group, error=str(error))
            return _out_of_time(group)
        verdicts, _ = self._decide(group, stored, [_Pending(charge, deadline, check)], None)
        return verdicts[0]

    async def request_hold(self, stored: GroupObject, deadline: float) -> None:
        """Ask all writers of a busy group to let an edit of it pass; an edit that gets no hold only takes longer."""
        if not edit_backoff.needs_hold(stored, self._now()):
            return
        try:
            await self._store.merge_status(stored.name, wire.hold_patch(stored, self._now()), self._left(deadline))
        except (ApiError, Unreachable) as error:
            log.warning("group not held for an edit", group=stored.name, error=str(error))

    async def _reconciled(self, group: str, deadline: float) -> None:
        """Wait a little for the first recount of a group that is there: unknown is not zero, nor forever."""
        until = min(deadline, self._clock() + self._patience)
        while (left := until - self._clock()) > 0:
            known = self._store.cached(group)
            if known is not None:
                try:
                    if wire.is_counted(known, self._catalog):
                        return
                except GroupUnreadable:
                    return
            else:
                if await self._missing(group, left):
                    return
                # It may have been counted while it was read: look again before waiting for a change.
                continue
            await self._store.wait_for_change(group, left)

    async def _missing(self, group: str, timeout: float) -> bool:
        try:
            return await self._store.read(group, timeout) is None
        except (ApiError, Unreachable):
            return True

    async def _serve(self, group: str) -> None:
        """Answer everything that waits on the group, batch by batch, then go."""
        try:
            while self._first(group):
                if len(self._lines[group]) > 1 or self._busy.get(group, False):
                    spacing = self._spacing.get(group, self._pace)
                    await asyncio.sleep(self._written.get(group, 0.0) + spacing - self._clock())
                await self._commit(group)
        except Exception:
            log.exception("group commit failed", group=group)
            raise
        finally:
            del self._workers[group]
            for pending in self._lines.pop(group):
                if not pending.answer.done():
                    pending.answer.set_result(_out_of_time(group))

    async def _commit(self, group: str) -> None:
        """Decide those who wait first and store what they were granted.

        Before every further try it is read again, and whoever has come meanwhile takes part.
        """
        stored, fresh, tries = self._store.cached(group), False, 0
        while batch := self._first(group):
            self._busy[group] = len(batch) > 1
            try:
                if stored is None and not fresh:
                    stored, fresh = await self._store.read(group, self._left(_last(batch))), True
                if stored is not None and (wait := self._backoff.remaining(stored)):
                    await self._store.wait_for_change(group, min(wait, self._left(_last(batch))))
                    stored, fresh = None, False
                    continue
                verdicts, account = self._decide(group, stored, batch, self._left_by_us(group, stored))
                if not fresh and any(isinstance(verdict, Denied) for verdict in verdicts):
                    stored = None
                    continue
                if stored is not None and account is not None:
                    body = wire.with_reservations(stored, account.entries())
                    self._written[group] = self._clock()
                    stored = await self._store.write_status(group, body, min(_WRITE_TIMEOUT, self._left(_last(batch))))
                    self._keep(group, stored.resource_version, account)
                    self._took[group] = self._clock() - self._written[group]
                    self.writes += 1
            except (ApiError, Unreachable) as error:
                if isinstance(error, Forbidden | Invalid):
                    log.error("group status cannot be written", group=group, error=str(error))
                stored, fresh, tries = None, False, tries + 1
                if isinstance(error, Conflict):
                    self.conflicts += 1
                    # Others write this group too: together we keep to the pace. Whoever has just written rests now.
                    self._spacing[group] = min(MAX_SPACING, self._spacing.get(group, self._pace) * 1.5)
                most = QUICKLY if isinstance(error, Conflict | NotFound) else min(1.0, 0.05 * 2 ** min(tries, 8))
                await asyncio.sleep(random.uniform(0, most))  # noqa: S311 jitter
                continue
            if not tries:
                # Where a write is slow, the API server is busy: we write for no more than half of the time.
                slow = min(MAX_SPACING, 2 * self._took.get(group, 0.0))
                self._spacing[group] = max(self._pace, slow, self._spacing.get(group, self._pace) * 0.8)
            # Stored: from here every answer holds.
            for pending, verdict in zip(batch, verdicts, strict=True):
                if not pending.answer.done():
                    pending.answer.set_result(verdict)
            return

    def _keep(self, group: str, version: int, account: Account) -> None:
        """Go on from this account as long as nobody else writes the group: to read a thousand promises takes long."""
        made = self._store.cached(group)
        if made is not None and made.resource_version == version:
            self._accounts[group] = made, account
            if len(self._accounts) > MAX_ACCOUNTS:
                del self._accounts[next(iter(self._accounts))]

    def _left_by_us(self, group: str, stored: GroupObject | None) -> Account | None:
        """The account of this very object: its version alone could be another's after a restore."""
        made, account = self._accounts.pop(group, (None, None))
        return account if made is stored else None

    def _left(self, deadline: float) -> float:
        """Return the seconds until the deadline; a tenth at least, so that what begins is not cut off at once."""
        return max(0.1, deadline - self._clock())

    def _first(self, group: str) -> list[_Pending]:
        """Those who have waited longest and still have time, no more than fit into one write."""
        now = self._clock()
        line = self._lines[group] = [p for p in self._lines[group] if not p.answer.done() and p.deadline > now]
        return line[:BATCH]

    def _decide(
        self, group: str, stored: GroupObject | None, batch: list[_Pending], account: Account | None
    ) -> tuple[list[Verdict], Account | None]:
        """All verdicts of a batch, in order, on one running copy; and that, where it has to be stored.

        `account` is the copy where it is known for this very version.
        """
        if stored is None:
            gone = Denied(Reason.NO_GROUP, f"quota {group} does not exist: create the group, or correct the label")
            return [gone] * len(batch), None
        if stored.metadata.deletion_timestamp is not None:
            return [Denied(Reason.DELETING, f"quota {group} is being deleted")] * len(batch), None
        if stored.status.used is None:
            return [(p.check and p.check(stored)) or not_reconciled(group, p.charge) for p in batch], None
        try:
            account = wire.account_of(stored, self._catalog) if account is None else account
        except GroupUnreadable as error:
            return [Denied(Reason.NOT_RECONCILED, f"quota {group} cannot be read: {error}")] * len(batch), None
        verdicts: list[Verdict] = []
        reserved = False
        for pending in batch:
            verdict = (pending.check and pending.check(stored)) or decide(account, pending.charge, self._now())
            if isinstance(verdict, Granted) and verdict.reservation is not None:
                account.reserve(verdict.reservation)
                reserved = True
            verdicts.append(verdict)
        return verdicts, account if reserved else None


def _last(batch: list[_Pending]) -> float:
    return max(p.deadline for p in batch)


def _out_of_time(group: str) -> Denied:
    return Denied(Reason.TIMEOUT, f"quota {group} could not be charged in time: try again")
