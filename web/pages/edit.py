"""Change a group: the form, its preview by the API server, and the change itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
import yaml
from aiohttp import web

from bizrq.api import group as wire
from bizrq.api.group import GroupObject
from bizrq.figures.groups.view import GroupView, ResourceView, group_view
from bizrq.kube.client import ApiError, Forbidden, NotFound, Unauthorized, Unreachable
from bizrq.store.groups import GROUPS, without_managed_fields
from web import changes, guard, parts
from web.changes import Base, Plan, Typed, Verdict
from web.html import Element, element, shown
from web.pages.ceilings import (
    HINT,
    Refusal,
    ceilings,
    explained,
    field,
    hidden,
    people,
    refusal_of,
    typed_from,
    typed_of,
)
from web.pages.group import path_to, relatives_card
from web.parts import UNSEEN, Cell, TableColumn
from web.problems import Problem, no_such_group
from web.reading import rights
from web.reading.views import Views
from web.visit import Visit, answer, form, group_address

#: How often a preview is made again because the group changed while it was made.
_TRIES = 3
#: Field and value of the second confirmation.
_CONFIRM = "confirm"


async def edit(visit: Visit) -> web.StreamResponse:
    """Show the form of a group."""
    name = visit.request.match_info["name"]
    stored = await read(visit, name)
    page = _Page(visit, stored, await _views(visit))
    if not await rights.may(visit.visitor.client, "patch", name):
        return page.show([missing("change", "patch", name)])
    return page.form(typed_from(page.base.hard, page.base.owner, page.base.contact))


async def change(visit: Visit) -> web.StreamResponse:
    """Preview what was typed, or apply what was previewed."""
    name = visit.request.match_info["name"]
    typed, seen = typed_of(visit.form), base_of(visit.form)
    if visit.form.get("step") == "apply" and seen is not None:
        return await _apply(visit, name, typed, seen)
    return await _preview(visit, name, typed, seen)


async def _preview(visit: Visit, name: str, typed: Typed, seen: Base | None) -> web.StreamResponse:
    for _ in range(_TRIES):
        stored = await read(visit, name)
        page = _Page(visit, stored, await _views(visit), seen)
        wanted = changes.plan(page.base, typed, visit.settings.catalog)
        if wanted.errors:
            return page.form(typed, Refusal("", wanted.errors), HTTPStatus.UNPROCESSABLE_ENTITY)
        if wanted.is_empty:
            return page.form(typed, Refusal("Nothing is changed yet."))
        try:
            verdict = await changes.send(visit.visitor.client, name, wanted, dry_run=True)
        except ApiError as error:
            if isinstance(error, Unauthorized):
                raise
            if changes.is_outdated(error):
                continue
            return page.form(typed, refusal_of(error, typed.ceilings), status_of(error))
        return page.preview(typed, wanted, verdict)
    raise Problem(HTTPStatus.CONFLICT, f"The group {name} changes all the time.", "Go back, and preview again.")


async def _apply(visit: Visit, name: str, typed: Typed, seen: Base) -> web.StreamResponse:
    """Send the change that was previewed. If the group is another one now, preview again what it would be."""
    wanted = changes.plan(seen, typed, visit.settings.catalog)
    stored = await read(visit, name)
    visitor, sent = visit.visitor, visit.form.get(guard.FIELD, "")
    # Somebody else may have made the same change by the same amount: only this very form was applied before.
    is_there = wanted.is_done(Base.of(stored)) and stored["metadata"]["generation"] != seen.generation
    if visitor.has_sent(sent) or (is_there and not typed.is_relative):
        return done(name, "again")
    if wanted.errors or wanted.is_empty:
        return await _preview(visit, name, typed, seen)
    if changes.other_managers(stored) and visit.form.get(_CONFIRM) != "yes":
        return await _preview(visit, name, typed, seen)
    try:
        await changes.send(visitor.client, name, wanted, dry_run=False)
    except ApiError as error:
        if isinstance(error, Unauthorized):
            raise
        if changes.is_outdated(error):
            # A second click may come while the first one is under way.
            return done(name, "again") if visitor.has_sent(sent) else await _preview(visit, name, typed, seen)
        page = _Page(visit, stored, await _views(visit))
        return page.form(typed, refusal_of(error, typed.ceilings), status_of(error))
    except Unreachable as error:
        raise not_known(name, error) from None
    visitor.note_sent(sent)
    return done(name, "changed")


class _Page:
    """The pages of one change of one group. `seen` is the version that the person saw, if it is another one."""

    def __init__(self, visit: Visit, stored: dict[str, Any], views: Views, seen: Base | None = None) -> None:
        self.visit = visit
        self.managers = changes.other_managers(stored)
        self.stored = wire.from_dict(stored)
        self.name = self.stored.name
        self.views = views
        self.base = Base.of(stored)
        self.seen = seen
        known = views.groups.get(self.name)
        children = known.children if known is not None else ()
        self.view = group_view(self.stored, children, visit.settings.catalog)
        self.parent = views.groups.get(self.stored.parent)

    def show(self, content: Sequence[Cell], status: HTTPStatus = HTTPStatus.OK) -> web.Response:
        head = element("div", path_to(self.views, self.view), element("h1", f"Change {self.name}"))
        return answer(self.visit, f"Change {self.name}", [head, *content], status=status)

    def form(self, typed: Typed, refusal: Refusal | None = None, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
        said, room = refused(refusal, self.views, self.stored.parent, self.name)
        return self.show([*self._changed(), *said, self._fields(typed, refusal or Refusal()), *room], status)

    def preview(self, typed: Typed, wanted: Plan, verdict: Verdict) -> web.Response:
        """Return the verdict, before and after, and the form to apply it or to type on."""
        after = group_view(_after(self.stored, verdict), self.view.children, self.visit.settings.catalog)
        said = [
            parts.notice("good", element("strong", "The API server would accept this. "), "Nothing is changed yet."),
            *(parts.notice("warn", element("strong", "Warning: "), shown(text)) for text in verdict.warnings),
        ]
        return self.show(
            [
                *self._changed(),
                *said,
                parts.card(f"{self.name}, before and after", _of_group(self.view, after, wanted)),
                parts.card("Its parent", *self._of_parent(after)),
                *self._of_children(wanted),
                self._apply_form(typed, wanted, verdict),
                self._fields(typed, Refusal()),
            ]
        )

    def _changed(self) -> list[Element]:
        """Return what somebody else changed since the person saw the group."""
        if self.seen is None or self.seen.generation == self.base.generation:
            return []
        what = "; ".join(changes.differences(self.seen, self.base))
        text = f"{what}. What you typed is kept and previewed on the new version."
        return [parts.notice("warn", element("strong", "The group was changed meanwhile: "), shown(text))]

    def _fields(self, typed: Typed, refusal: Refusal) -> Element:
        # A ceiling that somebody else has added meanwhile is there to be seen, too.
        rest = {name: str(amount) for name, amount in self.base.hard.items() if name not in typed.ceilings}
        whole = Typed({**typed.ceilings, **rest}, typed.owner, typed.contact)
        return form(
            self.visit.browser,
            group_address(self.name, "edit"),
            _base_field(self.base),
            element("p", HINT, class_="hint"),
            ceilings(whole, self.view, self.parent, refusal),
            people(whole),
            element(
                "div",
                element("button", "Preview", type="submit", name="step", value="preview", class_="primary"),
                element("a", "Cancel", href=group_address(self.name), class_="button"),
                class_="row",
            ),
            class_="card",
        )

    def _apply_form(self, typed: Typed, wanted: Plan, verdict: Verdict) -> Element:
        patch = msgspec.json.format(msgspec.json.encode(wanted.patch), indent=2).decode()
        content: list[Cell] = [_base_field(self.base), *hidden(typed)]
        if self.managers:
            content += self._of_managers(verdict)
        content += [
            element("details", element("summary", "The JSON Patch that is sent"), element("pre", shown_lines(patch))),
            element(
                "div",
                element("button", "Apply", type="submit", name="step", value="apply", class_="primary"),
                element("a", "Cancel", href=group_address(self.name), class_="button"),
                class_="row",
            ),
        ]
        return form(self.visit.browser, group_address(self.name, "edit"), *content, class_="card")

    def _of_managers(self, verdict: Verdict) -> list[Element]:
        names = ", ".join(map(shown, self.managers))
        text = yaml.safe_dump(changes.manifest(self.name, verdict.stored.get("spec") or {}), sort_keys=False)
        box = element("input", type="checkbox", name=_CONFIRM, value="yes", id=_CONFIRM, required="")
        return [
            parts.notice(
                "warn", element("strong", names), " keeps this group, and may undo a change that is made here."
            ),
            element("details", element("summary", "The manifest to commit instead"), element("pre", shown_lines(text))),
            element("p", box, element("label", f"Apply it here although {names} may undo it", for_=_CONFIRM)),
        ]

    def _of_parent(self, after: GroupView) -> list[Element]:
        if not self.stored.parent:
            return [element("p", "This group is a root: it takes nothing from a parent.", class_="soft")]
        if self.parent is None:
            return [element("p", f"{shown(self.stored.parent)} is {UNSEEN}.", class_="unseen")]
        catalog = self.visit.settings.catalog
        held, then = wire.held_of_parent(self.stored, catalog), wire.held_of_parent(after.group, catalog)
        more = {name: then.get(name, 0) - held.get(name, 0) for name in {*held, *then}}
        return [of_parent(self.parent, more)]

    def _of_children(self, wanted: Plan) -> list[Element]:
        children = [self.views.groups[name] for name in self.view.children if name in self.views.groups]
        if not children or not wanted.changed:
            return []
        columns = (TableColumn("child"), *(TableColumn(name, is_number=True) for name in wanted.changed))
        rows: list[list[Cell]] = []
        for child in children:
            by_name = {f.resource: f for f in child.resources}
            amounts = [_ceiling(by_name.get(name)) for name in wanted.changed]
            rows.append([parts.group_link(child.name, self.views.groups), *amounts])
        hint = "Children keep their ceilings. A name that the group gains must be in each of them."
        return [parts.card("Its children", parts.table(columns, rows), element("p", hint, class_="hint"))]


def _ceiling(figures: ResourceView | None) -> Cell:
    if figures is None:
        return parts.tag("no ceiling", "low")
    return f"{parts.amount(figures, figures.taken)} of {parts.amount(figures, figures.hard)}"


def _after(stored: GroupObject, verdict: Verdict) -> GroupObject:
    """Return the group as it would be, with the counts of now."""
    spec = wire.from_dict(without_managed_fields(verdict.stored)).spec
    return msgspec.structs.replace(stored, spec=spec)


def _of_group(before: GroupView, after: GroupView, wanted: Plan) -> Element:
    old, new = {f.resource: f for f in before.resources}, {f.resource: f for f in after.resources}
    columns = (
        TableColumn("resource"),
        TableColumn("ceiling", is_number=True),
        TableColumn("used and reserved", is_number=True),
        TableColumn("left", is_number=True),
        TableColumn("then"),
    )
    rows: list[list[Cell]] = []
    for name in [*new, *(name for name in old if name not in new)]:
        was, now = old.get(name), new.get(name)
        figures = now or was
        assert figures is not None  # noqa: S101 one of both has the name
        state: Cell = ""
        if now is not None and now.is_over:
            state = parts.tag("over quota: growth is refused", "over")
        elif name in wanted.changed:
            state = parts.tag("changed")
        left = then(was and parts.amount(was, was.left), now and parts.amount(now, now.left))
        ceiling = then(was and parts.amount(was, was.hard), now and parts.amount(now, now.hard))
        rows.append([shown(name), ceiling, parts.amount(figures, figures.taken), left, state])
    for word, was_said, is_said in (
        ("owner", wanted.base.owner, wanted.owner),
        ("contact", wanted.base.contact, wanted.contact),
    ):
        if was_said != is_said:
            rows.append([word, then(shown(was_said) or "none", shown(is_said) or "none"), "", "", parts.tag("changed")])
    return parts.table(columns, rows)


def of_parent(parent: GroupView, more: dict[str, int]) -> Element:
    """Return what a parent has left before and after a child holds so much more of it, in nano-units."""
    columns = (
        TableColumn("resource"),
        TableColumn("ceiling", is_number=True),
        TableColumn("left", is_number=True),
        TableColumn("then"),
    )
    rows: list[list[Cell]] = []
    for figures in parent.resources:
        growth, left = more.get(figures.resource, 0), figures.left
        after = None if left is None else left - growth
        state = parts.tag("over quota", "over") if after is not None and after < 0 else ""
        amounts = then(parts.amount(figures, left), parts.amount(figures, after))
        rows.append([shown(figures.resource), parts.amount(figures, figures.hard), amounts, state])
    link = element("a", shown(parent.name), href=group_address(parent.name))
    return element("div", element("p", link, class_="soft"), parts.table(columns, rows))


def then(before: str | None, after: str | None) -> Cell:
    """Return two texts with an arrow, or one if they are the same; None is no ceiling."""
    old, new = before or "no ceiling", after or "no ceiling"
    if old == new:
        return new
    return element(
        "span", element("span", old, class_="before"), " → ", element("span", new, class_="after"), class_="change"
    )


async def read(visit: Visit, name: str) -> dict[str, Any]:
    """Return the stored group with its managers, read now. Raise Problem or ApiError."""
    try:
        return await visit.visitor.client.get(GROUPS, name)
    except (NotFound, Forbidden):
        raise no_such_group(name) from None


async def _views(visit: Visit) -> Views:
    return visit.views(await visit.visitor.seen())


def missing(what: str, verb: str, name: str, plural: str = wire.PLURAL) -> Element:
    """Return the permission that a person lacks."""
    right = element("code", f"{verb} {plural}.{wire.API_GROUP}{f' {name}' if name else ''}")
    return parts.notice("warn", f"You may not {what} it: the permission ", right, " is missing. Ask an administrator.")


def refused(
    refusal: Refusal | None, views: Views, parent: str, name: str
) -> tuple[Sequence[Element], Sequence[Element]]:
    """Return what stands above a form that was not taken, and below it who has room for what was asked."""
    if refusal is None or not (refusal.text or refusal.of):
        return [], []
    if refusal.of is None:
        return [parts.notice("warn", shown(refusal.text))], []
    if not refusal.of:
        return [parts.notice("bad", *explained(refusal.text))], []
    said = element("strong", "Not accepted: "), f"see {', '.join(map(shown, refusal.of))} below."
    # Without a text it is the form that is wrong, and no room would help.
    if not refusal.text or not parent:
        return [parts.notice("bad", *said)], []
    link = element("a", "See which relatives have room", href="#relatives")
    return [parts.notice("bad", *said, " ", link)], [relatives_card(views, parent, name, list(refusal.of))]


def status_of(error: ApiError) -> HTTPStatus:
    """Return the status of a page that shows a refusal: that of the API server."""
    try:
        return HTTPStatus(error.status)
    except ValueError:
        return HTTPStatus.BAD_GATEWAY


def base_of(fields: Mapping[str, str]) -> Base | None:
    """Return the version of the group that a form was made from, None where it says none. Raise Problem."""
    text = fields.get("base", "")
    if not text:
        return None
    try:
        return msgspec.json.decode(text.encode(), type=Base)
    except msgspec.MsgspecError:
        raise Problem(HTTPStatus.BAD_REQUEST, "The form is not readable.", "Load the page again.") from None


def _base_field(base: Base) -> Element:
    return field("base", msgspec.json.encode(base).decode())


def shown_lines(text: str) -> str:
    return "\n".join(shown(line) for line in text.splitlines())


def not_known(name: str, error: Unreachable) -> Problem:
    """Return the answer where the API server did not say what became of a write."""
    return Problem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        f"The API server does not answer: {error}",
        f"Look at {name} before you try again: whether the change was made is not known.",
    )


def done(name: str, word: str) -> web.Response:
    return web.Response(status=303, headers={"Location": f"{group_address(name)}?done={word}"})
