"""Correct the hours of a group: the form, its preview by the API server, and the correction.

A correction is an object that is created, and never changed. The form has its name, so that one that is sent twice is
made once.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from aiohttp import web

from bizrq.api import corrections
from bizrq.api import group as wire
from bizrq.figures.changes.corrections import correction_of, group_after, parse_amount
from bizrq.figures.errors import BadValue
from bizrq.figures.groups.view import GroupView, ResourceView, group_view
from bizrq.kube.client import AlreadyExists, ApiError, NotFound, Unauthorized, Unreachable
from bizrq.store.hours import CORRECTIONS
from bizrq.units.names import is_cash, metered_resource
from web import changes, parts
from web.changes import Verdict
from web.html import Element, element, shown
from web.pages.ceilings import Refusal, amount_field, explained, refusal_of
from web.pages.ceilings import field as hidden_field
from web.pages.edit import missing, not_known, of_parent, read, refused, status_of, then
from web.pages.group import path_to
from web.parts import UNSEEN, Cell, TableColumn
from web.reading import rights
from web.reading.views import Views
from web.visit import Visit, answer, form

#: The name of a field is this and the resource whose hours it has.
_HOURS = "hours:"
_REASON, _NAME = "reason", "correction"
#: As admission and the schema name the reason, and its most characters.
_OF_REASON, _LONGEST_REASON = "spec.reason", 1024
#: Characters of the name of a resource.
_LONGEST = 400
#: The end of a correction's name, which the form brings back.
_END = re.compile("[0-9a-f]{16}")
_HINT = "Write hours like 12.5 to charge them, and -12.5 to give them back. An empty field corrects nothing."


@dataclass(frozen=True)
class _Typed:
    """What a person typed: hours by resource, the reason, and the name that the correction will have."""

    hours: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""
    name: str = ""


async def ask_correction(visit: Visit) -> web.StreamResponse:
    """Show the form."""
    page = await _page(visit)
    if not await rights.may(visit.visitor.client, "create", "", corrections.PLURAL):
        return page.show([missing("correct", "create", "", corrections.PLURAL)])
    return page.form(_Typed())


async def correct(visit: Visit) -> web.StreamResponse:
    """Preview what was typed, or make the correction that was previewed."""
    page = await _page(visit)
    typed = _typed_of(visit.form, page.name)
    hours, errors = _meant(visit, typed)
    if errors:
        return page.form(typed, Refusal("", errors), HTTPStatus.UNPROCESSABLE_ENTITY)
    if not hours:
        return page.form(typed, Refusal("Write some hours.", {}), HTTPStatus.UNPROCESSABLE_ENTITY)
    is_real = visit.form.get("step") == "apply" and visit.form.get(_NAME) == typed.name
    client = visit.visitor.client
    made = await correction_of(client, page.name, hours, typed.reason.strip(), typed.name)
    try:
        verdict = await changes.create(client, made, dry_run=not is_real, kind=CORRECTIONS)
    except Unauthorized:
        raise
    except AlreadyExists:
        if await _is_there(visit, made):
            return _done(page.name, "again")
        said = "Another correction was made with this form. To make this one, too, preview it."
        return page.form(replace(typed, name=""), Refusal(said, {}), HTTPStatus.CONFLICT)
    except ApiError as error:
        return page.form(typed, refusal_of(error, [*typed.hours, _OF_REASON]), status_of(error))
    except Unreachable as error:
        raise not_known(page.name, error) from None
    return _done(page.name, "corrected") if is_real else page.preview(typed, hours, verdict)


async def _page(visit: Visit) -> _Page:
    stored = await read(visit, visit.request.match_info["name"])
    return _Page(visit, stored, visit.views(await visit.visitor.seen()))


def _typed_of(fields: Mapping[str, str], group: str) -> _Typed:
    hours = {name.removeprefix(_HOURS)[:_LONGEST]: text for name, text in fields.items() if name.startswith(_HOURS)}
    before, _, end = fields.get(_NAME, "").rpartition("-")
    end = end if before == group and _END.fullmatch(end) else secrets.token_hex(8)
    return _Typed(hours, fields.get(_REASON, ""), f"{group}-{end}")


def _meant(visit: Visit, typed: _Typed) -> tuple[dict[str, str], dict[str, str]]:
    """Return the hours by the canonical name of the resource, and a sentence for each field that is wrong."""
    hours: dict[str, str] = {}
    errors: dict[str, str] = {}
    for name, text in typed.hours.items():
        text = "".join(text.split())
        if not text:
            continue
        try:
            resource, amount = parse_amount(name, text, visit.settings.catalog)
        except BadValue as error:
            errors[name] = str(error)
            continue
        if resource in hours:
            errors[name] = f"{resource} is given twice"
        hours[resource] = amount
    if not typed.reason.strip():
        errors[_OF_REASON] = "Say why. The reason stays in the record."
    return hours, errors


async def _is_there(visit: Visit, made: dict[str, Any]) -> bool:
    """Return True if the stored correction is what the form makes: then it was sent before."""
    try:
        stored = await visit.visitor.client.get(CORRECTIONS, made["metadata"]["name"])
    except Unauthorized:
        raise
    except NotFound:
        return False
    except ApiError:
        # Who may not read it has its name from a page of ours: nobody else has made one of this name.
        return True
    return stored.get("spec") == made["spec"]


def _done(name: str, word: str) -> web.Response:
    return web.Response(status=303, headers={"Location": f"/hours/{quote(name, safe='')}?done={word}"})


class _Page:
    """The pages of one correction of one group."""

    def __init__(self, visit: Visit, stored: dict[str, Any], views: Views) -> None:
        self.visit = visit
        self.stored = wire.from_dict(stored)
        self.name = self.stored.name
        self.views = views
        known = views.groups.get(self.name)
        self.view = group_view(self.stored, known.children if known is not None else (), visit.settings.catalog)

    def show(self, content: Sequence[Cell], status: HTTPStatus = HTTPStatus.OK) -> web.Response:
        title = f"Correct hours of {shown(self.name)}"
        head = element("div", path_to(self.views, self.view), element("h1", title))
        return answer(self.visit, title, [head, *content], status=status)

    def form(self, typed: _Typed, refusal: Refusal | None = None, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
        metered = _metered(self.view)
        if not metered and not typed.hours:
            example = element("code", "cash/requests.nvidia.com/gpu")
            return self.show(
                [parts.empty("This group has no budget of hours, such as ", example, " in its spec.hard.")]
            )
        said, _ = refused(refusal, self.views, "", self.name)
        return self.show([*said, self._fields(typed, refusal or Refusal())], status)

    def preview(self, typed: _Typed, hours: Mapping[str, str], verdict: Verdict) -> web.Response:
        catalog = self.visit.settings.catalog
        after = group_view(group_after(self.stored, hours, catalog), self.view.children, catalog)
        title = f"{shown(self.name)}, before and after"
        return self.show(
            [
                parts.notice(
                    "good", element("strong", "The API server would accept this. "), "Nothing is changed yet."
                ),
                *(parts.notice("warn", element("strong", "Warning: "), shown(text)) for text in verdict.warnings),
                parts.card(title, _of_group(self.view, after, hours), element("p", _ABOUT, class_="hint")),
                *self._of_parent(after),
                self._apply_form(typed),
                self._fields(typed, Refusal()),
            ]
        )

    def _of_parent(self, after: GroupView) -> list[Element]:
        if not self.stored.parent:
            return []
        parent = self.views.groups.get(self.stored.parent)
        if parent is None:
            return [
                parts.card("Its parent", element("p", f"{shown(self.stored.parent)} is {UNSEEN}.", class_="unseen"))
            ]
        catalog = self.visit.settings.catalog
        held, later = wire.held_of_parent(self.stored, catalog), wire.held_of_parent(after.group, catalog)
        more = {name: later.get(name, 0) - held.get(name, 0) for name in later if is_cash(name)}
        return [parts.card("Its parent, before and after", of_parent(parent, more))]

    def _apply_form(self, typed: _Typed) -> Element:
        sent = [(f"{_HOURS}{name}", text) for name, text in typed.hours.items()]
        sent += [(_REASON, typed.reason), (_NAME, typed.name)]
        said = element(
            "p", "Reason: ", element("q", shown(typed.reason.strip())), ". It is made in your name, and stays."
        )
        return form(
            self.visit.browser,
            _address(self.name),
            *(hidden_field(name, text) for name, text in sent),
            said,
            self._buttons("Make the correction", "apply"),
            class_="card",
        )

    def _fields(self, typed: _Typed, refusal: Refusal) -> Element:
        columns = (
            TableColumn("resource"),
            TableColumn("hours to charge", is_number=True),
            TableColumn("spent and granted", is_number=True),
            TableColumn("left", is_number=True),
        )
        metered = _metered(self.view)
        rows: list[Sequence[Cell]] = []
        for name in dict.fromkeys([*metered, *typed.hours]):
            now, text = metered.get(name), typed.hours.get(name, "")
            amounts = [parts.amount(now, now.used), parts.amount(now, now.left)] if now is not None else ["", ""]
            rows.append([*amount_field(f"{_HOURS}{name}", name, text, refusal.beside(name)), *amounts])
        table = parts.table(columns, rows, label="Hours to correct")
        table.set("class", "scroll edit")
        # A preview that goes on has the name of the last one.
        kept = [hidden_field(_NAME, typed.name)] if typed.name else []
        return form(
            self.visit.browser,
            _address(self.name),
            *kept,
            element("p", _HINT, class_="hint"),
            table,
            _reason(typed, refusal.beside(_OF_REASON)),
            self._buttons("Preview", "preview"),
            class_="card",
        )

    def _buttons(self, text: str, step: str) -> Element:
        return element(
            "div",
            element("button", text, type="submit", name="step", value=step, class_="primary"),
            element("a", "Cancel", href=f"/hours/{quote(self.name, safe='')}", class_="button"),
            class_="row",
        )


_ABOUT = (
    "It becomes a line of the open period. Spent hours are shown from 0: more that is given back is in the record, and "
    "counts against what is charged later. Children keep their budgets."
)


def _address(name: str) -> str:
    return f"/hours/{quote(name, safe='')}/correct"


def _metered(view: GroupView) -> dict[str, ResourceView]:
    """Return the figures of the budgets of a group, by the resource without cash/."""
    return {metered_resource(each.resource): each for each in view.resources if is_cash(each.resource)}


def _reason(typed: _Typed, wrong: str) -> Element:
    key = f"wrong:{_OF_REASON}"
    described = {"aria_invalid": "true", "aria_describedby": key} if wrong else {}
    box = element(
        "input",
        name=_REASON,
        id=_REASON,
        value=typed.reason,
        maxlength=_LONGEST_REASON,
        autocomplete="off",
        **described,
    )
    said = [element("div", *explained(wrong), class_="wrong", id=key)] if wrong else []
    hint = element("p", "It stays in the record, with your name.", class_="hint")
    return element("div", element("label", "Reason", for_=_REASON), box, *said, hint, class_="field")


def _of_group(before: GroupView, after: GroupView, hours: Mapping[str, str]) -> Element:
    columns = (
        TableColumn("resource"),
        TableColumn("correction", is_number=True),
        TableColumn("budget", is_number=True),
        TableColumn("spent and granted", is_number=True),
        TableColumn("left", is_number=True),
        TableColumn("then"),
    )
    old, new = _metered(before), _metered(after)
    rows: list[list[Cell]] = []
    for name, text in hours.items():
        was, now = old.get(name), new.get(name)
        signed = shown(text if text.startswith("-") else f"+{text}")
        if was is None or now is None:
            rows.append([shown(name), signed, "no budget", "", "", ""])
            continue
        state = parts.tag("hours spent", "over") if now.left is not None and now.left <= 0 else parts.tag("changed")
        rows.append(
            [
                shown(name),
                signed,
                parts.amount(was, was.hard),
                then(parts.amount(was, was.used), parts.amount(now, now.used)),
                then(parts.amount(was, was.left), parts.amount(now, now.left)),
                state,
            ]
        )
    return parts.table(columns, rows)
