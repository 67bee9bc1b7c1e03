"""The page on which a person asks whether manifests fit, and what a stored workload costs.

Nothing is written: each answer is a dry run with the person's own rights.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from http import HTTPStatus

from aiohttp import web

from bizrq.api.group import GroupObject
from bizrq.figures.errors import BadValue, NoAnswer, NotThere
from bizrq.figures.groups.source import GroupSource
from bizrq.figures.manifests import objects_of
from bizrq.figures.simulate import fit as simulated
from bizrq.figures.simulate.in_memory import Fetch
from bizrq.figures.simulate.outcome import DryRunOutcome
from bizrq.figures.simulate.stored_workload import StoredWorkload, find_workload
from bizrq.figures.simulate.wording import cost_rows, later_sentences, who_pays
from bizrq.figures.state.enforcement import Trouble, troubles_of
from bizrq.kube.client import Forbidden
from bizrq.workloads.demand.offline import objects_in
from web import parts
from web.html import Element, element, shown
from web.pages.outcomes import answers, explanation, said, summary
from web.parts import UNSEEN, Cell, TableColumn
from web.problems import Problem
from web.visit import Visit, answer, form

#: The most bytes of manifests, and the most objects in them: each takes a look of its own at the cluster.
MOST, OBJECTS = 1024 * 1024, 500
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
#: The name of a stored object may be as long as this, with its kind.
_LONGEST = 400
_EXAMPLE = "apiVersion: apps/v1\nkind: Deployment\nmetadata: …"


async def fit_form(visit: Visit) -> web.StreamResponse:
    """Show the form; with `?what=KIND/NAME` also what that stored workload costs."""
    query = visit.request.query
    namespace = query.get("namespace", "").strip() or visit.visitor.client.namespace
    what = query.get("what", "").strip()[:_LONGEST]
    if not what:
        return _page(visit, namespace=namespace)
    try:
        _check(namespace)
        found = await _stored(visit, what, namespace)
    except NoAnswer as error:
        status = HTTPStatus.NOT_FOUND if isinstance(error, NotThere) else HTTPStatus.UNPROCESSABLE_ENTITY
        return _page(visit, namespace=namespace, what=what, wrong_what=str(error), status=status)
    except Forbidden:
        why = f"{what} in {namespace} is {UNSEEN}"
        return _page(visit, namespace=namespace, what=what, wrong_what=why, status=HTTPStatus.NOT_FOUND)
    return _page(visit, found, namespace=namespace, what=what, title=f"Cost of {what}")


async def fit_answer(visit: Visit) -> web.StreamResponse:
    """Answer whether the manifests of the form fit."""
    text, namespace = visit.form.get("manifests", ""), visit.form.get("namespace", "").strip()
    if len(text.encode("utf-8", "replace")) > MOST:
        raise Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"The manifests are larger than {MOST // 1024 // 1024} MiB.",
            "Send fewer at a time, or run bizrq fit -f FILE.",
        )
    try:
        _check(namespace)
    except BadValue as error:
        return _page(visit, namespace=namespace, text=text, wrong_namespace=str(error), status=_UNFIT)
    try:
        documents = await asyncio.to_thread(objects_of, text)
        if (count := sum(1 for _ in objects_in(documents))) > OBJECTS:
            raise BadValue(f"{count} objects are too many for a page: send at most {OBJECTS}, or run bizrq fit -f FILE")
        troubles, outcomes = await _tried(visit, documents, namespace)
    except NoAnswer as error:
        return _page(visit, namespace=namespace, text=text, wrong=str(error), status=_UNFIT)
    warned = [parts.notice("warn", shown(each.message)) for each in troubles]
    if not outcomes:
        nothing = parts.empty("These manifests contain no group and no object of a charged kind.")
        return _page(visit, [*warned, nothing], namespace=namespace, text=text)
    heard = summary(outcomes)
    kind = "good" if all(each.fits for each in outcomes) else "warn" if not _refused(outcomes) else "bad"
    content = [*warned, parts.card("Answer", parts.notice(kind, element("strong", heard)), *answers(outcomes))]
    return _page(visit, content, namespace=namespace, text=text, title=f"Fit: {heard}")


_UNFIT = HTTPStatus.UNPROCESSABLE_ENTITY


def _refused(outcomes: Sequence[DryRunOutcome]) -> bool:
    return any(not each.fits and not each.is_unknown for each in outcomes)


def _check(namespace: str) -> None:
    """Raise BadValue for what is no name of a namespace."""
    if not _NAMESPACE.fullmatch(namespace):
        raise BadValue("write the name of a namespace: at most 63 small letters, digits and -", "namespace")


async def _known(visit: Visit) -> tuple[list[GroupObject], Fetch | None]:
    """Return the groups that the user sees, and how others are read where there may be some."""
    seen = await visit.visitor.seen()
    fetch = None if seen.is_complete else GroupSource(visit.visitor.client, is_complete=False).fetch
    return list(seen.groups.values()), fetch


async def _tried(
    visit: Visit, documents: Sequence[object], namespace: str
) -> tuple[Sequence[Trouble], Sequence[DryRunOutcome]]:
    """Return what is wrong with enforcement, and the outcomes. Raise NoAnswer, ApiError or Unreachable."""
    groups, fetch = await _known(visit)
    client = visit.visitor.client
    return await asyncio.gather(
        troubles_of(client, groups, namespace), simulated.fit(client, groups, documents, namespace, fetch=fetch)
    )


async def _stored(visit: Visit, what: str, namespace: str) -> list[Element]:
    """Return what a stored workload costs, as `bizrq explain` says it. Raise NoAnswer, ApiError or Unreachable."""
    kind, _, name = what.partition("/")
    if not kind or not name or "/" in name:
        raise BadValue("write KIND/NAME, for example deployment/web", "what")
    groups, fetch = await _known(visit)
    kind = kind.lower().partition(".quota.biz.group")[0]
    found, unread = await find_workload(visit.visitor.client, visit.settings, groups, kind, namespace, name, fetch)
    content: list[Cell] = [*parts.unread(unread), *said(who_pays(found)), *_cost(found), *said(found.remarks)]
    if found.later is not None:
        content += said(later_sentences(found.later))
    if found.more is not None:
        content.append(element("h3", "One more replica"))
        content += explanation(found.more, "One more replica fits", "One more replica does not fit:")
    return [parts.card(f"{found.kind} {shown(found.namespace)}/{shown(found.name)}", *content)]


def _cost(found: StoredWorkload) -> list[Element]:
    if found.error:
        why = f"It cannot be counted, so it counts as zero and cannot grow: {shown(found.error)}"
        return [parts.notice("bad", why)]
    rows = cost_rows(found)
    columns = (TableColumn("resource"), *(TableColumn(head, is_number=True) for head in ("costs", "left", "hard")))
    return [parts.table(columns, rows, label="What it costs")] if rows else []


def _page(
    visit: Visit,
    found: Sequence[Element] = (),
    *,
    namespace: str,
    text: str = "",
    what: str = "",
    wrong: str = "",
    wrong_namespace: str = "",
    wrong_what: str = "",
    title: str = "Fit",
    status: HTTPStatus = HTTPStatus.OK,
) -> web.StreamResponse:
    head = element("div", element("h1", "Fit"), element("p", _ABOUT, class_="hint"), class_="head titled")
    forms = element(
        "div",
        _manifests(visit, namespace, text, wrong, wrong_namespace, is_again=bool(found)),
        _workload(namespace, what, wrong_what),
        class_="columns uneven",
    )
    return answer(visit, shown(title), [*found, forms], above=[head], status=status)


_ABOUT = "Would the cluster admit it now? Nothing is written, and only what you may read is used."


def _manifests(visit: Visit, namespace: str, text: str, wrong: str, wrong_namespace: str, *, is_again: bool) -> Element:
    box = element(
        "textarea",
        # A browser drops the first line break of a box.
        f"\n{text}",
        name="manifests",
        id="manifests",
        rows=18,
        required="",
        spellcheck="false",
        autocomplete="off",
        placeholder=_EXAMPLE,
        **_described("manifests", wrong, hint=True),
    )
    hint = "YAML or JSON, at most 1 MiB. Objects are decided in order, each after those before it."
    made = form(
        visit.browser,
        "/fit",
        element("label", "Manifests", for_="manifests"),
        element("p", hint, id="manifests-hint", class_="hint"),
        *_complaint("manifests", wrong),
        box,
        *_namespace_field("namespace", namespace, wrong_namespace, "For manifests that name none."),
        element("button", "Check again" if is_again else "Check", type="submit", class_="primary"),
        class_="stack",
    )
    return parts.card("Check manifests", made)


def _workload(namespace: str, what: str, wrong: str) -> Element:
    box = element(
        "input",
        name="what",
        id="what",
        value=what,
        required="",
        maxlength=_LONGEST,
        autocomplete="off",
        placeholder="deployment/web",
        **_described("what", wrong, hint=True),
    )
    made = element(
        "form",
        element("label", "Kind and name", for_="what"),
        element("p", "As for kubectl: deployment/web", id="what-hint", class_="hint"),
        *_complaint("what", wrong),
        box,
        *_namespace_field("what-namespace", namespace, "", ""),
        element("button", "Explain", type="submit"),
        method="get",
        action="/fit",
        class_="stack",
    )
    about = element("p", "Who pays for it, what it costs, and whether one more replica fits.", class_="hint")
    return parts.card("Explain a workload", about, made)


def _namespace_field(id_: str, namespace: str, wrong: str, hint: str) -> list[Element]:
    box = element(
        "input",
        name="namespace",
        id=id_,
        value=namespace,
        required="",
        maxlength=63,
        autocomplete="off",
        **_described(id_, wrong, hint=bool(hint)),
    )
    hints = [element("p", hint, id=f"{id_}-hint", class_="hint")] if hint else []
    return [element("label", "Namespace", for_=id_), *hints, *_complaint(id_, wrong), box]


def _described(id_: str, wrong: str, *, hint: bool) -> dict[str, str]:
    """Return the attributes of a field that has a hint, or something wrong in it."""
    by = [*([f"{id_}-hint"] if hint else []), *([f"{id_}-wrong"] if wrong else [])]
    described = {"aria_describedby": " ".join(by)} if by else {}
    return {**described, **({"aria_invalid": "true", "autofocus": ""} if wrong else {})}


def _complaint(id_: str, wrong: str) -> list[Element]:
    return [element("p", shown(wrong), id=f"{id_}-wrong", class_="wrong", role="alert")] if wrong else []
