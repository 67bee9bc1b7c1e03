"""Delete a group: what the API server would say, and the deletion."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from aiohttp import web

from bizrq.api import group as wire
from bizrq.figures.groups.view import group_view
from bizrq.kube.client import ApiError, Conflict, NotFound, Unauthorized, Unreachable
from bizrq.units import names
from web import changes, parts
from web.html import Element, element, shown
from web.pages.ceilings import field
from web.pages.edit import missing, not_known, of_parent, read, status_of
from web.pages.group import path_to
from web.parts import UNSEEN, Cell
from web.reading import rights
from web.visit import Visit, answer, form, group_address


async def ask(visit: Visit) -> web.StreamResponse:
    """Show what a deletion does, by a dry run of it."""
    name = visit.request.match_info["name"]
    stored = await read(visit, name)
    uid = stored["metadata"]["uid"]
    if not await rights.may(visit.visitor.client, "delete", name):
        return await _show(visit, stored, [missing("delete", "delete", name)])
    try:
        warnings = await changes.delete(visit.visitor.client, name, uid, dry_run=True)
    except Unauthorized:
        raise
    except ApiError as error:
        return await _show(visit, stored, [_refused(error)])
    managers = changes.other_managers(stored)
    said = [parts.notice("warn", element("strong", "Warning: "), shown(text)) for text in warnings]
    if managers:
        keepers = ", ".join(map(shown, managers))
        said.append(parts.notice("warn", element("strong", keepers), " keeps this group, and may create it again."))
    back = element("a", "Cancel", href=group_address(name), class_="button")
    button = element("button", f"Delete {shown(name)}", type="submit", class_="danger")
    text = "The API server would delete it. Hours that it has spent stay with its parent."
    sent = form(
        visit.browser,
        group_address(name, "delete"),
        field("uid", uid),
        element("p", text),
        element("div", button, back, class_="row"),
        class_="card",
    )
    return await _show(visit, stored, [*said, *await _freed(visit, wire.from_dict(stored)), sent])


def _refused(error: ApiError) -> Element:
    return parts.notice("bad", element("strong", "It cannot be deleted: "), shown(changes.sentence(error)))


async def delete(visit: Visit) -> web.StreamResponse:
    """Delete the group that was seen; one that is gone meanwhile was deleted before."""
    name = visit.request.match_info["name"]
    gone = web.Response(status=303, headers={"Location": "/?done=deleted"})
    try:
        await changes.delete(visit.visitor.client, name, visit.form.get("uid", ""), dry_run=False)
    except Unauthorized:
        raise
    except (NotFound, Conflict):
        # The uid is another one, or there is none: the group that was seen is gone.
        return gone
    except ApiError as error:
        stored = await read(visit, name)
        return await _show(visit, stored, [_refused(error)], status_of(error))
    except Unreachable as error:
        raise not_known(name, error) from None
    return gone


async def _show(
    visit: Visit, stored: dict[str, Any], content: Sequence[Cell], status: HTTPStatus = HTTPStatus.OK
) -> web.Response:
    found = visit.views(await visit.visitor.seen())
    group = wire.from_dict(stored)
    view = found.groups.get(group.name) or group_view(group, (), visit.settings.catalog)
    title = f"Delete {group.name}"
    head = element("div", path_to(found, view), element("h1", shown(title)))
    return answer(visit, title, [head, *content], status=status)


async def _freed(visit: Visit, group: wire.GroupObject) -> list[Element]:
    """Return what the parent gets back: all that the group holds but the hours that it has spent."""
    if not group.parent:
        return []
    parent = visit.views(await visit.visitor.seen()).groups.get(group.parent)
    if parent is None:
        return [parts.card("Its parent", element("p", f"{shown(group.parent)} is {UNSEEN}.", class_="unseen"))]
    catalog = visit.settings.catalog
    spent = {name: n for name, n in wire.parse_amounts(group, group.status.used).items() if names.is_cash(name)}
    held = wire.held_of_parent(group, catalog)
    freed = {name: spent.get(name, 0) - n for name, n in held.items()}
    return [parts.card("Its parent, before and after", of_parent(parent, freed))]
