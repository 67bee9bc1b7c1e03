"""Group commit (docs/design.md): decide the admissions that wait on one group together, and store them by one write.

This file alone decides when a reservation is written and when an answer may go out. `bizrq.quota.admission.decide`
decides what fits.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import structlog

from bizrq.api import group as wire
from bizrq.api.group import GroupObject, GroupUnreadable
from bizrq.api.review import Request
from bizrq.kube.client import ApiError, Conflict, Forbidden, Invalid, NotFound, Unreachable
from bizrq.quota.account import Account
from bizrq.quota.admission import decide, not_reconciled
from bizrq.quota.allowance import NOTED, is_line_text, needs_count, needs_recall, without_lines_of
from bizrq.quota.change import Charge
from bizrq.quota.fair_share import must_be_free
from bizrq.quota.new_reservation import with_cover
from bizrq.quota.reservation import parse_reservation
from bizrq.quota.verdict import Denied, Granted, Reason, Verdict, name_ending, unreadable
from bizrq.store import edit_backoff
from bizrq.store.edit_backoff import EditBackoff
from bizrq.store.ports import GroupWriter
from bizrq.units.names import Catalog
from bizrq.units.quantity import QuantityError
from bizrq.units.slot import ReservationError
from webhooks.charging.deadline import Deadline
from webhooks.charging.measures import Measures, Unmeasured
from webhooks.charging.notes import Notebook
from webhooks.charging.recall import Recaller, StillHeld, has_lines

log = structlog.get_logger(__name__)

Check = Callable[[GroupObject], Denied | None]


#: Refuses a create whose name is taken. Reads the object.
NameCheck = Callable[[], Awaitable[Denied | None]]
#: Stands for "granted, if the name is free".
_IF_FREE = Granted()


class Decide(Protocol):
    """Decide a charge against a stored group, which `check` may refuse.

    `name_check` is asked before a create is granted that would affect others even if its name is taken.
    """

    async def __call__(
        self,
        group: str,
        charge: Charge,
        deadline: float,
        check: Check | None = None,
        name_check: NameCheck | None = None,
    ) -> Verdict: ...


#: Seconds between two status writes of a busy group by one process: each costs the API server, and requests that wait
#: are decided together. A lone request never waits. (A person's edit does not depend on this gap:
#: `bizrq.store.edit_backoff`.)
PACE = 0.02
#: The longest spacing. It grows with each conflict, so that most writes succeed: in a process that loses again and
#: again, all requests would run out of time.
MAX_SPACING = 1.0
#: Seconds that a request waits for a group which no recount has published yet.
PATIENCE = 3.0
#: Requests decided in one write: what fits into MAX_ENTRIES several times over, and into some milliseconds.
BATCH = 500
#: Accounts that are kept from one write to the next: those of the groups written last.
MAX_ACCOUNTS = 32
_WRITE_TIMEOUT = 10.0
#: Seconds after a conflict within which the next try begins, at random: processes that lost together should not meet.
QUICKLY = 0.02


#: Seconds between two looks at a group whose recalled notes are to be counted.
_COUNT_WAIT = 0.25
#: Seconds after which nothing more is kept of a group that nothing was asked of.
IDLE = 60.0


@dataclass(eq=False, slots=True)
class _Pending:
    charge: Charge
    deadline: float
    check: Check | None
    may_be_taken: bool = False
    #: Asks to drop the reservation of the charge.
    takes_back: bool = False
    #: Until when it waits for a count of what was recalled, in seconds of the clock.
    counts_until: float = 0.0
    answer: asyncio.Future[Verdict] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(eq=False, slots=True)
class _Queue:
    """One group's waiting requests, the task that serves them, and the pace of the group's writes.

    Times are in seconds of the clock. `account` is the account as our own last write left it, with the very object
    that the write made. `busy` is true where the last batch held more than one request.
    """

    spacing: float
    waiting: list[_Pending] = field(default_factory=list)
    worker: asyncio.Task[None] | None = None
    written: float | None = None
    took: float = 0.0
    busy: bool = False
    account: tuple[GroupObject, Account] | None = None
    idle_since: float = 0.0

    @property
    def must_wait(self) -> bool:
        """Return True where the pace applies: a lone request never waits."""
        return len(self.waiting) > 1 or self.busy

    @property
    def next_write(self) -> float:
        return (self.written or 0.0) + self.spacing

    def first(self, now: float) -> list[_Pending]:
        """Return those that have waited longest and still have time, no more than fit into one write."""
        self.waiting = [p for p in self.waiting if not p.answer.done() and p.deadline > now]
        return self.waiting[:BATCH]

    def slow_down(self) -> None:
        """Write less often: others write this group too, and together we keep to the pace."""
        self.spacing = min(MAX_SPACING, self.spacing * 1.5)

    def speed_up(self, pace: float) -> None:
        """Write more often again, but for no more than half of the time: a slow write means a busy API server."""
        self.spacing = max(pace, min(MAX_SPACING, 2 * self.took), self.spacing * 0.8)


class Reserver:
    """Decides charges against stored groups, one queue of waiting requests per group."""

    def __init__(
        self,
        store: GroupWriter,
        *,
        catalog: Catalog,
        now: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        clock: Callable[[], float] = time.monotonic,
        pace: float = PACE,
        patience: float = PATIENCE,
        measures: Measures | None = None,
        recaller: Recaller | None = None,
        notebook: Notebook | None = None,
    ) -> None:
        """`now` is the time of day in milliseconds; `clock` is what deadlines are in, in seconds.

        Without a `recaller` nothing that processes hold ahead is taken back. With a `notebook` this process admits by
        its allowances.
        """
        self._store = store
        self._catalog = catalog
        self._now = now
        self._clock = clock
        self._pace = pace
        self._patience = patience
        self._measures = measures or Unmeasured()
        self._recaller = recaller
        self._notebook = notebook
        #: Queues that are being served.
        self._queues: dict[str, _Queue] = {}
        #: Queues of groups that were written lately and are not being served, the one that is idle longest first.
        self._idle: dict[str, _Queue] = {}
        #: Queues that hold an account, the latest written last.
        self._with_account: dict[_Queue, None] = {}
        self._backoff = EditBackoff(clock)
        self.writes = 0
        self.conflicts = 0

    async def reserve(
        self,
        group: str,
        charge: Charge,
        deadline: float,
        check: Check | None = None,
        name_check: NameCheck | None = None,
    ) -> Verdict:
        """Return the verdict on a charge; where it is Granted, its reservation is stored.

        `deadline` is in seconds of the clock; past it the verdict is "try again". `check` may refuse on the very
        version of the group that the charge is decided on. `name_check` as in `Decide`.
        """
        if self._notebook is not None:
            granted = await self._notebook.admit(group, charge, deadline, check)
            if granted is not None:
                return granted
        await self._reconciled(group, deadline)
        verdict = await self._enqueue(group, _Pending(charge, deadline, check, may_be_taken=name_check is not None))
        if verdict is not _IF_FREE or name_check is None:
            return verdict
        return await name_check() or await self._enqueue(group, _Pending(charge, deadline, check))

    async def _enqueue(self, group: str, pending: _Pending) -> Verdict:
        """Return the verdict on a request once it was decided with others, and stored."""
        deadline = pending.deadline
        queue = self._queues.get(group)
        if queue is None:
            queue = self._queues[group] = self._idle.pop(group, None) or _Queue(self._pace)
            queue.worker = asyncio.create_task(self._serve(group, queue), name=f"reserve {group}")
        queue.waiting.append(pending)
        began = self._clock()
        try:
            async with asyncio.timeout(max(0.0, deadline - began)):
                return await pending.answer
        except TimeoutError:
            return _out_of_time(group)
        finally:
            self._measures.waited(self._clock() - began)

    async def take_back(self, group: str, charge: Charge, deadline: float) -> None:
        """Drop the reservation of a create that is refused, if there is time.

        Only a create has a reservation of its own: updates of one object share theirs.
        """
        await self._enqueue(group, _Pending(charge, deadline, None, takes_back=True))

    def decider(self, request: Request) -> Decide:
        """Return the method that decides the charges of a request: a dry run writes nothing."""
        return self.dry_run if request.dry_run else self.reserve

    async def dry_run(
        self,
        group: str,
        charge: Charge,
        deadline: float,
        check: Check | None = None,
        name_check: NameCheck | None = None,
    ) -> Verdict:
        """Return the verdict that `reserve` would give now, and write nothing.

        `name_check` is not asked: what is not stored affects nobody.
        """
        await self._reconciled(group, deadline)
        try:
            stored = await self._store.read(group, self._left(deadline))
        except (ApiError, Unreachable) as error:
            log.warning("group not read", group=group, error=str(error))
            return _out_of_time(group)
        pending = _Pending(charge, deadline, check)
        verdicts, _ = self._decide(group, stored, [pending], None)
        if stored is not None and self._would_recall(stored, pending, verdicts[0]):
            # What processes hold ahead they give back on demand.
            free = without_lines_of(wire.account_of(stored, self._catalog))
            verdicts, _ = self._decide(group, stored, [pending], free)
        return verdicts[0]

    async def request_hold(self, stored: GroupObject, deadline: float) -> None:
        """Ask all writers of a busy group to let an edit of it pass; an edit without a hold only takes longer."""
        if not edit_backoff.needs_hold(stored, self._now()):
            return
        try:
            await self._store.merge_status(stored.name, wire.hold_patch(stored, self._now()), self._left(deadline))
        except (ApiError, Unreachable) as error:
            log.warning("group not held for an edit", group=stored.name, error=str(error))

    async def _reconciled(self, group: str, deadline: float) -> None:
        """Wait up to `patience` for the first recount of a group that exists: unknown is not zero, nor forever."""
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

    async def _serve(self, group: str, queue: _Queue) -> None:
        """Answer everything that waits on the group, batch by batch, then end."""
        try:
            while queue.first(self._clock()):
                if queue.must_wait:
                    await asyncio.sleep(queue.next_write - self._clock())
                await self._commit(group, queue)
        except Exception:
            log.exception("group commit failed", group=group)
            raise
        finally:
            self._retire(group, queue)
            for pending in queue.waiting:
                if not pending.answer.done():
                    pending.answer.set_result(_out_of_time(group))
            queue.waiting = []

    def _retire(self, group: str, queue: _Queue) -> None:
        """Keep the pace of a group that was written for a while, and drop what has been idle for long."""
        del self._queues[group]
        queue.worker, queue.idle_since = None, self._clock()
        if queue.written is not None:
            self._idle[group] = queue
        while self._idle:
            name, oldest = next(iter(self._idle.items()))
            if self._clock() - oldest.idle_since < IDLE:
                break
            del self._idle[name]
            self._with_account.pop(oldest, None)

    async def _commit(self, group: str, queue: _Queue) -> None:
        """Decide the first that wait and store what they were granted.

        Before every further try the group is read again, and requests that have come meanwhile take part.
        """
        stored, fresh, tries = self._store.cached(group), False, 0
        while batch := queue.first(self._clock()):
            queue.busy = len(batch) > 1
            try:
                # Read, unless the cache has the group and has not led to a refusal or a conflict.
                if stored is None and not fresh:
                    stored, fresh = await self._store.read(group, self._left(_last(batch))), True
                # Let a person's edit pass.
                if stored is not None and (wait := self._backoff.remaining(stored)):
                    await self._store.wait_for_change(group, min(wait, self._left(_last(batch))))
                    stored, fresh = None, False
                    continue
                # Decide. A refusal from the cache does not count.
                verdicts, account = self._decide(group, stored, batch, self._take_account(queue, stored))
                if not fresh and any(isinstance(verdict, Denied) for verdict in verdicts):
                    stored = None
                    continue
                # Take back what processes hold ahead, before anybody is refused for it.
                if stored is not None and self._recaller is not None:
                    held = map(partial(self._would_recall, stored), batch, verdicts)
                    if any(held):
                        stored, fresh = await self._recaller.recall(stored, self._left(_last(batch))), True
                        continue
                # Store.
                if stored is not None and account is not None:
                    stored = await self._write(group, queue, stored, account, self._left(_last(batch)))
            except (ApiError, Unreachable, StillHeld) as error:
                stored, fresh, tries = None, False, tries + 1
                await self._rest(group, queue, error, tries)
                continue
            if not tries:
                queue.speed_up(self._pace)
            self._measures.decided(len(batch))
            # Stored: from here every answer holds.
            later = stored is not None and self._await_count(stored, batch, verdicts)
            for pending, verdict in zip(batch, verdicts, strict=True):
                if not pending.answer.done() and not (later and pending.counts_until > self._clock()):
                    pending.answer.set_result(verdict)
            if later:
                await self._store.wait_for_change(group, _COUNT_WAIT)
            return

    def _would_recall(self, stored: GroupObject, pending: _Pending, verdict: Verdict) -> bool:
        """Return True where a charge is refused for want of what processes hold ahead."""
        if not isinstance(verdict, Denied) or not has_lines(stored):
            return False
        account = wire.account_of(stored, self._catalog)
        return needs_recall(account, with_cover(account, pending.charge), self._now())

    def _await_count(self, stored: GroupObject, batch: list[_Pending], verdicts: list[Verdict]) -> bool:
        """Return True where refusals have to wait for a count of what was recalled, and note how long each may."""
        waits = False
        if not any(NOTED in text for text in stored.status.reservations):
            return False
        account = wire.account_of(stored, self._catalog)
        for pending, verdict in zip(batch, verdicts, strict=True):
            if isinstance(verdict, Denied) and needs_count(account, with_cover(account, pending.charge), self._now()):
                pending.counts_until = pending.counts_until or min(pending.deadline, self._clock() + self._patience)
                waits = waits or pending.counts_until > self._clock()
            else:
                pending.counts_until = 0.0
        return waits

    async def _write(
        self, group: str, queue: _Queue, stored: GroupObject, account: Account, timeout: float
    ) -> GroupObject:
        """Store the account's reservations on this version of the group; raises as `GroupStore.write_status` does."""
        body = wire.with_reservations(stored, account.entries())
        queue.written = began = self._clock()
        with self._measures.writing():
            made = await self._store.write_status(group, body, min(_WRITE_TIMEOUT, timeout))
        self._keep_account(group, queue, made.resource_version, account)
        queue.took = self._clock() - began
        self.writes += 1
        return made

    async def _rest(self, group: str, queue: _Queue, error: ApiError | Unreachable | StillHeld, tries: int) -> None:
        """Sleep for a random time after a try that failed: a short one after a lost race."""
        if isinstance(error, StillHeld):
            log.warning("allowances not recalled", group=group, error=str(error))
        if isinstance(error, Forbidden | Invalid):
            log.error("group status cannot be written", group=group, error=str(error))
        if isinstance(error, Conflict):
            self.conflicts += 1
            queue.slow_down()
        most = QUICKLY if isinstance(error, Conflict | NotFound) else min(1.0, 0.05 * 2 ** min(tries, 8))
        await asyncio.sleep(random.uniform(0, most))  # noqa: S311 jitter

    def _keep_account(self, group: str, queue: _Queue, version: int, account: Account) -> None:
        """Go on from this account as long as only we write the group: to read a thousand reservations takes long."""
        made = self._store.cached(group)
        if made is not None and made.resource_version == version:
            queue.account = made, account
            self._with_account[queue] = None
            if len(self._with_account) > MAX_ACCOUNTS:
                oldest = next(iter(self._with_account))
                del self._with_account[oldest]
                oldest.account = None

    def _take_account(self, queue: _Queue, stored: GroupObject | None) -> Account | None:
        """Take the account of this very object: its version alone could be another's after a restore."""
        made, account = queue.account or (None, None)
        queue.account = None
        self._with_account.pop(queue, None)
        return account if made is stored else None

    def _left(self, deadline: float) -> float:
        return Deadline(deadline, self._clock).seconds_left()

    def _decide(
        self, group: str, stored: GroupObject | None, batch: list[_Pending], account: Account | None
    ) -> tuple[list[Verdict], Account | None]:
        """Return the verdicts of a batch, in order, on one running copy; and the copy, where it must be stored.

        `account` is the copy where one is kept for this very version.
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
            unread = unreadable(Reason.NOT_RECONCILED, group, f"quota {group} cannot be read", str(error))
            return [_if_of_a_line(stored) or unread] * len(batch), None
        verdicts: list[Verdict] = []
        is_changed = False
        for pending in batch:
            if pending.takes_back:
                is_changed = account.take_back(pending.charge.write) or is_changed
                verdicts.append(Granted())
                continue
            verdict = self._verdict(stored, account, pending)
            if isinstance(verdict, Granted) and verdict.reservation is not None:
                if pending.may_be_taken and must_be_free(account, verdict.reservation):
                    verdict = _IF_FREE
                else:
                    account.reserve(verdict.reservation)
                    is_changed = True
            verdicts.append(verdict)
        return verdicts, account if is_changed else None

    def _verdict(self, stored: GroupObject, account: Account, pending: _Pending) -> Verdict:
        """Return the verdict on one charge. What an owner covers is no growth, so that no check of growth applies."""
        charge = with_cover(account, pending.charge)
        if _is_outdated(stored, charge):
            return Denied(
                Reason.BUSY, f"quota {stored.name}: other children of {charge.slot} are being created: try again"
            )
        checked = pending.check if charge.room is None or charge.growth() else None
        verdict = (checked and checked(stored)) or decide(account, charge, self._now())
        return name_ending(verdict, stored.status.ending) if isinstance(verdict, Denied) else verdict


def _is_outdated(stored: GroupObject, charge: Charge) -> bool:
    """Return True where a recount may have dropped the entry of a child that was not listed yet.

    It drops an entry once it has seen the child, so none is lost that was counted from no more than the list.
    """
    if charge.room is None or charge.pending_write is None:
        return False
    counted = [stored.status.counted_at.get(kind, "") for kind in charge.room.kinds]
    return any(each.isascii() and each.isdigit() and int(each) > charge.room.revision for each in counted)


def _if_of_a_line(stored: GroupObject) -> Denied | None:
    """Return "try again" where only what a process holds ahead cannot be read: the controller removes that."""
    unread = [text for text in stored.status.reservations if not _is_readable(text)]
    if not unread or not all(map(is_line_text, unread)):
        return None
    return Denied(
        Reason.BUSY, f"quota {stored.name}: an allowance cannot be read, and ends within some two minutes: try again"
    )


def _is_readable(text: str) -> bool:
    try:
        parse_reservation(text)
    except (ReservationError, QuantityError):
        return False
    return True


def _last(batch: list[_Pending]) -> float:
    return max(p.deadline for p in batch)


def _out_of_time(group: str) -> Denied:
    return Denied(Reason.TIMEOUT, f"quota {group} could not be charged in time: try again")
