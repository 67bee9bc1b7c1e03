"""Create a group: the form, its preview by the API server, and the creation."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from aiohttp import web

from bizrq.api import group as wire
from bizrq.figures.groups.view import GroupView
from bizrq.kube.client import AlreadyExists, ApiError, Unauthorized, Unreachable
from bizrq.store.groups import GROUPS
from web import changes, parts
from web.changes import Base, Plan, Typed, Verdict
from web.html import Element, element, shown
from web.pages.ceilings import Refusal, ceilings, field, hidden, people, refusal_of, typed_of
from web.pages.edit import done, missing, not_known, of_parent, refused, status_of, then
from web.parts import UNSEEN, Cell, TableColumn
from web.reading import rights
from web.reading.views import Views
from web.visit import Visit, answer, form, group_address

_HINT = "Write an amount like 20, 500m or 64Gi. A child has a ceiling for every resource that its parent limits."
_NAME = "name"


async def new(visit: Visit) -> web.StreamResponse:
    """Show the form of a new group, below a parent or as a root."""
    page = _Page(visit, visit.request.query.get("parent", "")[:63], "", await _views(visit))
    if not await rights.may(visit.visitor.client, "create", ""):
        return page.show([missing("create", "create", "")])
    names = [f.resource for f in page.parent.resources] if page.parent is not None else []
    return page.form(Typed(dict.fromkeys(names, "")))


async def create(visit: Visit) -> web.StreamResponse:
    """Preview what was typed, or create what was previewed."""
    typed = typed_of(visit.form)
    name, parent = visit.form.get(_NAME, "").strip(), visit.form.get("parent", "").strip()
    page = _Page(visit, parent, name, await _views(visit))
    wanted = changes.plan(Base("", 0), typed, visit.settings.catalog)
    if not name:
        return page.form(typed, Refusal("Give the group a name.", {}), HTTPStatus.UNPROCESSABLE_ENTITY)
    if wanted.errors:
        return page.form(typed, Refusal("", wanted.errors), HTTPStatus.UNPROCESSABLE_ENTITY)
    made = _manifest(name, parent, wanted)
    is_real = visit.form.get("step") == "apply"
    try:
        verdict = await changes.create(visit.visitor.client, made, dry_run=not is_real)
    except Unauthorized:
        raise
    except AlreadyExists as error:
        if is_real and await _is_there(visit, made):
            return done(name, "there")
        return page.form(typed, Refusal(error.message, {}), HTTPStatus.CONFLICT)
    except ApiError as error:
        return page.form(typed, refusal_of(error, typed.ceilings), status_of(error))
    except Unreachable as error:
        raise not_known(name, error) from None
    return done(name, "created") if is_real else page.preview(typed, wanted, verdict)


async def _views(visit: Visit) -> Views:
    return visit.views(await visit.visitor.seen())


async def _is_there(visit: Visit, made: dict[str, Any]) -> bool:
    """Return True if the stored group is what the form makes: then it was sent before."""
    try:
        stored = await visit.visitor.client.get(GROUPS, made["metadata"]["name"])
    except ApiError:
        return False
    spec = {key: value for key, value in (stored.get("spec") or {}).items() if value not in ("", None)}
    return spec == made["spec"]


def _manifest(name: str, parent: str, wanted: Plan) -> dict[str, Any]:
    said = {"parentBizGroup": parent, "owner": wanted.owner, "contact": wanted.contact}
    spec = {**{key: value for key, value in said.items() if value}, "hard": dict(wanted.hard)}
    return changes.manifest(name, spec)


class _Page:
    """The pages of one new group."""

    def __init__(self, visit: Visit, above: str, name: str, views: Views) -> None:
        self.visit = visit
        self.above = above
        self.name = name
        self.views = views
        self.parent: GroupView | None = views.groups.get(above)

    def show(self, content: Sequence[Cell], status: HTTPStatus = HTTPStatus.OK) -> web.Response:
        where = f"New group below {self.above}" if self.above else "New group"
        return answer(self.visit, where, [element("h1", shown(where)), *content], status=status)

    def form(self, typed: Typed, refusal: Refusal | None = None, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
        said, room = refused(refusal, self.views, self.above, self.name)
        return self.show([*said, self._fields(typed, refusal or Refusal()), *room], status)

    def preview(self, typed: Typed, wanted: Plan, verdict: Verdict) -> web.Response:
        said = [
            parts.notice("good", element("strong", "The API server would create this. "), "Nothing is created yet."),
            *(parts.notice("warn", element("strong", "Warning: "), shown(text)) for text in verdict.warnings),
        ]
        rows: list[list[Cell]] = [[shown(name), then(None, str(amount))] for name, amount in wanted.hard.items()]
        table = parts.table((TableColumn("resource"), TableColumn("ceiling", is_number=True)), rows)
        return self.show(
            [
                *said,
                parts.card(f"{self.name}, as it will be", table),
                *self._of_parent(verdict),
                form(
                    self.visit.browser,
                    "/new",
                    field(_NAME, self.name),
                    field("parent", self.above),
                    *hidden(typed),
                    element("button", "Create", type="submit", name="step", value="apply", class_="primary"),
                    class_="card",
                ),
                self._fields(typed, Refusal()),
            ]
        )

    def _of_parent(self, verdict: Verdict) -> list[Element]:
        if not self.above:
            return []
        if self.parent is None:
            return [parts.card("Its parent", element("p", f"{shown(self.above)} is {UNSEEN}.", class_="unseen"))]
        held = wire.hard_of(wire.from_dict(verdict.stored), self.visit.settings.catalog)
        return [parts.card("Its parent, before and after", of_parent(self.parent, held))]

    def _fields(self, typed: Typed, refusal: Refusal) -> Element:
        name = element("input", name=_NAME, id=_NAME, value=self.name, required="", maxlength=63, autocomplete="off")
        parent = element("input", name="parent", id="parent", value=self.above, maxlength=63, autocomplete="off")
        fields = [
            element("div", element("label", "Name", for_=_NAME), name, class_="field"),
            element(
                "div",
                element("label", "Parent", for_="parent"),
                parent,
                element("p", "Empty for a root. It cannot be changed later.", class_="hint"),
                class_="field",
            ),
        ]
        cancel = group_address(self.above) if self.above else "/"
        return form(
            self.visit.browser,
            "/new",
            element("div", *fields, class_="columns"),
            element("p", _HINT, class_="hint"),
            ceilings(typed, None, self.parent, refusal),
            people(typed),
            element(
                "div",
                element("button", "Preview", type="submit", name="step", value="preview", class_="primary"),
                element("a", "Cancel", href=cancel, class_="button"),
                class_="row",
            ),
            class_="card",
        )
