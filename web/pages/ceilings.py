"""The fields of a form for the ceilings of a group, and what is beside each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from bizrq.figures.groups.view import GroupView, ResourceView
from bizrq.kube.client import ApiError
from web import parts
from web.changes import Hard, Typed, sentence
from web.html import Element, element, shown
from web.parts import Cell, TableColumn
from web.visit import group_address

#: The name of a field is this and the name of its ceiling.
_HARD = "hard:"
#: Rows for ceilings that the group does not have yet.
_MORE = 3
_NAME, _AMOUNT = "more-name-", "more-amount-"
#: Characters of the name of a ceiling; those of Kubernetes have at most 317.
_LONGEST = 400
#: As the schema of groups has it.
_LONGEST_CONTACT = 128


@dataclass(frozen=True)
class Refusal:
    """Why a change was not taken, with a sentence by ceiling where it is about single ones."""

    text: str = ""
    of: Mapping[str, str] | None = None

    def beside(self, name: str) -> str:
        return (self.of or {}).get(name, "")


def typed_of(fields: Mapping[str, str]) -> Typed:
    """Return what a form has."""
    ceilings = {name.removeprefix(_HARD)[:_LONGEST]: text for name, text in fields.items() if name.startswith(_HARD)}
    for number in range(_MORE):
        name, text = fields.get(f"{_NAME}{number}", "").strip(), fields.get(f"{_AMOUNT}{number}", "")
        if name:
            ceilings[name[:_LONGEST]] = text
    return Typed(ceilings, fields.get("owner", ""), fields.get("contact", ""))


def typed_from(hard: Hard, owner: str, contact: str) -> Typed:
    """Return a form as it is before anything is typed."""
    return Typed({name: str(amount) for name, amount in hard.items()}, owner, contact)


def hidden(typed: Typed) -> list[Element]:
    """Return what was typed as fields that are sent again."""
    pairs = [(f"{_HARD}{name}", text) for name, text in typed.ceilings.items()]
    return [field(name, text) for name, text in (*pairs, ("owner", typed.owner), ("contact", typed.contact))]


def field(name: str, text: str) -> Element:
    return element("input", type="hidden", name=name, value=text)


def refusal_of(error: ApiError, names: Iterable[str]) -> Refusal:
    """Return a refusal of the API server, beside the ceilings that its sentence names."""
    text = sentence(error)
    of: dict[str, str] = {}
    rest = text
    # The longest name first: limits.cpu.A4 is not limits.cpu.
    for name in sorted(names, key=len, reverse=True):
        if _names(rest, name):
            of[name] = text
            rest = rest.replace(name, " ")
    return Refusal(text, of)


def _names(text: str, name: str) -> bool:
    """Return True if a text has a name as a whole word."""
    at = text.find(name)
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(name) : at + len(name) + 1]
        if not (before.isalnum() or (before in ("/", ".", "-") and before)) and not (after.isalnum() or after == "-"):
            return True
        at = text.find(name, at + 1)
    return False


def ceilings(typed: Typed, view: GroupView | None, parent: GroupView | None, refusal: Refusal) -> Element:
    """Return the table of fields: one row for each ceiling, and some for more. `view` is the group as it is."""
    known = {f.resource: f for f in view.resources} if view is not None else {}
    above = {f.resource: f for f in parent.resources} if parent is not None else {}
    columns = (
        TableColumn("resource"),
        TableColumn("ceiling", is_number=True),
        TableColumn("used", is_number=True),
        TableColumn("left of the parent", is_number=True),
    )
    order = [*(name for name in (*known, *above) if name in typed.ceilings), *typed.ceilings]
    rows = [
        _row(name, typed.ceilings[name], known.get(name), above.get(name), refusal) for name in dict.fromkeys(order)
    ]
    rows += [_more(number) for number in range(_MORE)]
    table = parts.table(columns, rows, label="Ceilings")
    table.set("class", "scroll edit")
    return table


def _row(
    name: str, text: str, now: ResourceView | None, above: ResourceView | None, refusal: Refusal
) -> Sequence[Cell]:
    return [
        *amount_field(f"{_HARD}{name}", name, text, refusal.beside(name)),
        parts.amount(now, now.used) if now is not None else "",
        parts.amount(above, above.left) if above is not None else "",
    ]


def explained(text: str) -> list[Cell]:
    """Return a refusal, with a link to the page of what `kubectl bizrq explain` says in place of that command.

    The command is at the end of a refusal of admission (webhooks/next_step.py); other texts are as they are.
    """
    before, found, after = text.partition("; run: kubectl bizrq explain ")
    command, more, rest = after.partition("; ")
    to = _page_of(command) if found else ""
    if not to:
        return [shown(text)]
    return [shown(before), "; ", element("a", "see what is left, and who has room", href=to), shown(more + rest)]


def _page_of(command: str) -> str:
    """Return the address of what a command explains: a group, a stored workload, or a file; "" for any other."""
    match command.split():
        case [group] if group[0].isalnum() and "/" not in group:
            return group_address(group)
        case [workload, "-n", namespace] if "/" in workload:
            return f"/fit?{urlencode({'what': workload, 'namespace': namespace})}"
        case ["-f", "FILE", "-n", namespace]:
            return f"/fit?{urlencode({'namespace': namespace})}"
        case _:
            return ""


def amount_field(key: str, name: str, text: str, wrong: str) -> Sequence[Cell]:
    """Return the cells of a resource's label and of the field for its amount, with what is wrong with that."""
    described = {"aria_invalid": "true", "aria_describedby": f"wrong:{name}"} if wrong else {}
    box = element("input", name=key, id=key, value=text, autocomplete="off", inputmode="text", **described)
    said = [element("div", *explained(wrong), class_="wrong", id=f"wrong:{name}")] if wrong else []
    return [element("label", shown(name), for_=key), element("div", box, *said)]


def _more(number: int) -> Sequence[Cell]:
    name = element(
        "input",
        name=f"{_NAME}{number}",
        aria_label=f"Another resource, {number + 1}",
        placeholder="another resource",
        autocomplete="off",
    )
    amount = element("input", name=f"{_AMOUNT}{number}", aria_label=f"Its ceiling, {number + 1}", autocomplete="off")
    return [name, amount, "", ""]


def people(typed: Typed) -> Element:
    """Return the fields for who answers for the group."""
    fields = [
        element(
            "div",
            element("label", label, for_=name),
            element("input", name=name, id=name, value=text, maxlength=_LONGEST_CONTACT, autocomplete="off"),
            element("p", hint, class_="hint"),
            class_="field",
        )
        for name, label, text, hint in (
            ("owner", "Owner", typed.owner, "Who answers for the group. It gives no right."),
            ("contact", "Contact", typed.contact, "Where to ask, like a channel. Refusals name it."),
        )
    ]
    return element("div", *fields, class_="columns")


HINT = (
    "Write an amount like 20, 500m or 64Gi; +2 or -2 changes the ceiling by that; "
    "an empty field takes the ceiling away."
)
