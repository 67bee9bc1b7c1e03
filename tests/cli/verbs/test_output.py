"""The output of verbs that read: on terminals of 80 and 160 columns, and in a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from bizrq.cli.groups import _without_versions
from bizrq.figures.words import alternatives
from bizrq.kube.client import Resource
from bizrq.quota.allowance import Line
from bizrq.store.groups import GROUPS
from tests.cli.conftest import Bizrq, until_interrupted
from tests.support.objects import deployment, group

pytestmark = pytest.mark.asyncio(loop_scope="module")

NARROW = """\
GROUP         RESOURCE                                HARD  USED  LEFT
corp          limits.cpu                    ▓▓▓▓····   100    60    40
              requests.nvidia.com/gpu       ▓▓▓▓▓▓▓▓    16    16     0
              cash/requests.nvidia.com/gpu  █▓▓▓····    1k   520   480
└─ ai         limits.cpu                    ▓▓▓▓····    60    30    30
              requests.nvidia.com/gpu       ▓▓▓▓▓▓▓▓    16    16     0
              cash/requests.nvidia.com/gpu  █·······   500   120   380
   ├─ nlp     limits.cpu                    ████▒▒··    10     6     2
   │            .A4                         ███████!     3     4    -1
   │          requests.nvidia.com/gpu       ········     4     0     4
   │          cash/requests.nvidia.com/gpu  ········   100     0   100
   ├─ ocr     limits.cpu                    ????????     5     ?     ?
   │          requests.nvidia.com/gpu       ????????     0     ?     ?
   │          cash/requests.nvidia.com/gpu  ????????     0     ?     ?
   └─ vision  limits.cpu                    ███·····    20     8    12
              requests.nvidia.com/gpu       █████···    12     8     4
                .A100                       █████···    12     8     4
              cash/requests.nvidia.com/gpu  ████████    16    16     0
█ own workloads  ▓ granted to children  ▒ reserved  · left  ! over quota"""
WIDE = """\
GROUP  RESOURCE                                            HARD  USED  SELF  GRANTED  RESERVED  LEFT
nlp    limits.cpu                    ████████████▒▒▒▒····    10     6     6        0         2     2
         .A4                         ███████████████████!     3     4     4        0         0    -1
       requests.nvidia.com/gpu       ····················     4     0     0        0         0     4
       cash/requests.nvidia.com/gpu  ····················   100     0     0        0         0   100
█ own workloads  ▓ granted to children  ▒ reserved  · left  ! over quota"""
PIPE = """\
GROUP      RESOURCE       HARD  USED  SELF  GRANTED  RESERVED  LEFT
ai         limits.cpu       60    30     0       30         0    30
├─ nlp     limits.cpu       10     6     6        0         2     2
│          limits.cpu.A4     3     4     4        0         0    -1
├─ ocr     limits.cpu        5     ?     ?        ?         0     ?
└─ vision  limits.cpu       20     8     8        0         0    12"""


async def test_a_tree_in_a_narrow_terminal_has_bars_and_what_is_left(bizrq: Bizrq) -> None:
    result = await bizrq("tree", width=80)
    assert (result.code, result.plain, result.err) == (0, NARROW, "")
    assert all(len(line) <= 80 for line in result.plain.splitlines())


async def test_a_narrow_tree_never_truncates_names_or_numbers(bizrq: Bizrq) -> None:
    """Bars are dropped first, and their legend; then each group and resource has lines of its own."""
    narrow = (await bizrq("tree", width=60)).plain
    assert narrow.splitlines() == [f"{line[:42]}{line[52:]}" for line in NARROW.splitlines()[:-1]]
    lines = (await bizrq("tree", "ai", width=40)).plain.splitlines()
    assert lines[:7] == [
        "ai",
        "  limits.cpu:  hard 60  used 30  left 30",
        "  requests.nvidia.com/gpu:  hard 16",
        "  used 16  left 0",
        "  cash/requests.nvidia.com/gpu:",
        "  hard 500  used 120  left 380",
        "├─ nlp",
    ]
    assert lines[7:9] == ["│    limits.cpu:  hard 10  used 6", "│    left 2"]
    assert all(len(line) <= 40 for line in lines)


async def test_a_tree_is_limited_to_levels_and_sorted_by_what_is_scarcest(bizrq: Bizrq) -> None:
    """A number says how many groups are left out below a name."""
    two = (await bizrq("tree", "--depth", "2", "-r", "limits.cpu")).plain.splitlines()
    assert [line.split()[0:3] for line in two[1:]] == [["corp", "limits.cpu", "100"], ["└─", "ai", "(+3)"]]
    legend = "(+N) groups below that are not shown"
    assert [legend in (await bizrq("tree", *more, width=160)).plain for more in ([], ["--depth", "2"])] == [False, True]
    names = (await bizrq("tree", "ai", "--sort", "percent", "-o", "name")).out.split()
    # A group that is not counted yet is last.
    assert [name.rpartition("/")[2] for name in names] == ["ai", "nlp", "vision", "ocr"]
    result = await bizrq("tree", "--depth", "0")
    assert (result.code, result.out) == (2, "")


async def test_a_tree_of_one_resource_has_the_groups_that_limit_it_and_their_ancestors(bizrq: Bizrq) -> None:
    names = (await bizrq("tree", "-r", "limits.cpu.A4", "-o", "csv")).out.splitlines()
    assert [line.split(",")[0] for line in names[1:]] == ["nlp"]
    tree = (await bizrq("tree", "-r", "limits.cpu.A4")).plain.splitlines()
    assert [line.split()[:3] for line in tree[1:3]] == [["corp", "unlimited"], ["└─", "ai", "unlimited"]]
    assert len(tree) == 4


@pytest.mark.parametrize("width", [80, 160])
async def test_a_tree_is_ascii_where_the_encoding_has_no_more(bizrq: Bizrq, width: int) -> None:
    result = await bizrq("tree", "ai", width=width, encoding="ascii")
    assert result.out.isascii()
    lines = result.plain.splitlines()
    assert [line.split()[:2] for line in lines if "limits.cpu " in line][1:] == [
        ["|-", "nlp"],
        ["|-", "ocr"],
        ["`-", "vision"],
    ]
    assert "####++.." in result.plain or "############++++...." in result.plain
    assert lines[-1] == "# own workloads  = granted to children  + reserved  . left  ! over quota"


async def test_a_tree_in_a_wide_terminal_has_every_number(bizrq: Bizrq) -> None:
    assert (await bizrq("tree", "nlp", width=160)).plain == WIDE


async def test_a_tree_in_a_pipe_is_plain_and_complete(bizrq: Bizrq) -> None:
    result = await bizrq("tree", "ai", "--resource", "limits.cpu")
    assert result.plain == PIPE
    assert "\x1b" not in result.out


async def test_over_quota_is_red_unless_no_color_is_set(bizrq: Bizrq) -> None:
    coloured = (await bizrq("tree", "nlp", width=80)).out
    assert re.search(r"\x1b\[31m█{7}!", coloured)
    assert re.search(r"\x1b\[1;31m *-1", coloured)
    plain = (await bizrq("tree", "nlp", width=80, NO_COLOR="1")).out
    assert "\x1b[3" not in plain
    assert "███████!     3     4    -1" in plain


async def test_the_json_of_tree(bizrq: Bizrq) -> None:
    [nlp] = json.loads((await bizrq("tree", "nlp", "-o", "json")).out)
    assert nlp["resources"].pop("limits.cpu") == {
        "unit": "millicores", "hard": 10_000, "used": 6_000, "selfUsed": 6_000, "granted": 0, "reserved": 2_000,
        "left": 2_000, "percentOfHard": 80, "ahead": 0, "liens": 0,
    }  # fmt: skip
    assert [(c["type"], c["status"], c["reason"]) for c in nlp["conditions"]][1] == (
        "OverQuota",
        "True",
        "CommandResult",
    )
    assert (nlp["name"], nlp["parent"], nlp["children"]) == ("nlp", "ai", [])
    [ocr] = yaml.safe_load((await bizrq("tree", "ocr", "-o", "yaml")).out)
    assert ocr["resources"]["limits.cpu"] == {
        "unit": "millicores", "hard": 5_000, "used": None, "selfUsed": None, "granted": None, "reserved": 0,
        "left": None, "percentOfHard": None, "ahead": 0, "liens": 0,
    }  # fmt: skip
    names = (await bizrq("tree", "ai", "-o", "name")).out.split()
    assert names == [f"bizgroupresourcequota.quota.biz.group/{name}" for name in ("ai", "nlp", "ocr", "vision")]


GET = """\
NAME    PARENT  READY    OVER     SCARCEST                      % OF HARD  AGE
ai      corp    True     False    requests.nvidia.com/gpu            100%  AGO
corp    <none>  Unknown  Unknown  requests.nvidia.com/gpu            100%  AGO
nlp     ai      True     True     limits.cpu.A4                      134%  AGO
ocr     ai      Unknown  Unknown  ?                                     ?  AGO
vision  ai      Unknown  Unknown  cash/requests.nvidia.com/gpu       100%  AGO"""
GET_WIDE = """\
NAME  PARENT  READY  OVER  SCARCEST       TAKEN  HARD  % OF HARD  RESERVATIONS  COUNTED  AGE
nlp   ai      True   True  limits.cpu.A4      4     3       134%             1     AGO  AGO"""


async def test_get_lists_groups_with_their_scarcest_resource(bizrq: Bizrq) -> None:
    assert re.sub(" +", " ", (await bizrq("get", width=80)).ageless) == re.sub(" +", " ", GET)
    wide = (await bizrq("get", "nlp", "-o", "wide", width=100)).ageless
    assert re.sub(" +", " ", wide) == re.sub(" +", " ", GET_WIDE)
    # A row that a narrow terminal has no room for gets lines of its own, and every value.
    assert (await bizrq("get", "nlp", "-o", "wide", width=50)).ageless.splitlines() == [
        "nlp",
        "  PARENT ai  READY True  OVER True",
        "  SCARCEST limits.cpu.A4  TAKEN 4  HARD 3",
        "  % OF HARD 134%  RESERVATIONS 1  COUNTED AGO",
        "  AGE AGO",
    ]


async def test_get_prints_objects_names_and_csv(bizrq: Bizrq) -> None:
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        printed = read((await bizrq("get", "nlp", "vision", "-o", form)).out)
        assert (printed["apiVersion"], printed["kind"]) == ("v1", "List")
        assert [item["metadata"]["name"] for item in printed["items"]] == ["nlp", "vision"]
        assert printed["items"][0]["spec"]["hard"]["limits.cpu"] == "10"
    assert (await bizrq("get", "nlp", "-o", "name")).out == "bizgroupresourcequota.quota.biz.group/nlp\n"
    [row] = csv.DictReader(io.StringIO((await bizrq("get", "nlp", "-o", "csv")).out))
    assert (row["scarcest"], row["unit"], row["taken"], row["hard"]) == ("limits.cpu.A4", "millicores", "4000", "3000")
    assert row["percentOfHard"] == "134"


@pytest.mark.parametrize(
    ("short", "found"),
    [
        ("cpu", {"limits.cpu", "limits.cpu.A4"}),
        ("nvidia.com/gpu", {"requests.nvidia.com/gpu", "requests.nvidia.com/gpu.A100"}),
        ("limits.cpu", {"limits.cpu", "limits.cpu.A4"}),
    ],
)
async def test_a_short_name_of_a_resource_is_understood(bizrq: Bizrq, short: str, found: set[str]) -> None:
    out = (await bizrq("report", "-r", short, "-o", "csv")).out
    assert {row["resource"] for row in csv.DictReader(io.StringIO(out))} == found


@pytest.mark.parametrize("selector", ["foo=(", "a b", "=", "x in y", "-=1"])
async def test_a_bad_selector_is_one_line_that_says_what_to_write(bizrq: Bizrq, selector: str) -> None:
    for more in ([], ["--watch"]):
        result = await bizrq("get", "-l", selector, *more)
        assert (result.code, result.out) == (2, "")
        assert result.err == (
            f"bizrq: --selector {selector}: no label selector: write key=value, key!=value, key or !key, "
            "with commas between them\n"
        )


async def test_a_selector_that_nothing_matches_is_not_an_empty_cluster(bizrq: Bizrq) -> None:
    assert (await bizrq("get", "-l", "foo=bar")).plain == "No group matches foo=bar."


async def test_a_selector_and_a_name_do_not_go_together(bizrq: Bizrq) -> None:
    """As with kubectl: the group of that name may be there, and not match."""
    for more in ([], ["--watch"]):
        result = await bizrq("get", "nlp", "-l", "foo=bar", *more)
        assert (result.code, result.out) == (2, "")
        assert result.err.startswith("bizrq: --selector chooses from all groups: ")


async def test_get_prints_the_object_itself_where_one_is_asked_for(bizrq: Bizrq) -> None:
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        printed = read((await bizrq("get", "nlp", "-o", form)).out)
        assert (printed["kind"], printed["metadata"]["name"]) == ("BizGroupResourceQuota", "nlp")


REPORT = """\
GROUP   RESOURCE                      HARD  USED  RESERVED  LEFT  % OF HARD
nlp     limits.cpu                      10     6         2     2        80%
nlp     limits.cpu.A4                    3     4         0    -1       134%
vision  cash/requests.nvidia.com/gpu    16    16         0     0       100%"""


async def test_report_has_a_row_for_every_group_and_resource(bizrq: Bizrq) -> None:
    report = (await bizrq("report", "ai", "--over", "68", width=80)).plain.splitlines()
    assert [line for line in report if not line.startswith("ai")] == REPORT.splitlines()
    rows = json.loads((await bizrq("report", "-o", "json")).out)
    assert rows[0] == {
        "group": "corp", "parent": "", "resource": "limits.cpu", "unit": "millicores", "hard": 100_000,
        "used": 60_000, "selfUsed": 0, "granted": 60_000, "reserved": 0, "left": 40_000, "percentOfHard": 60,
        "ahead": 0, "liens": 0,
    }  # fmt: skip
    assert len(rows) == 17
    out = (await bizrq("report", "nlp", "-r", "limits.cpu", "-o", "csv")).out
    assert out.splitlines() == [
        "group,parent,resource,unit,hard,used,selfUsed,granted,reserved,left,percentOfHard,ahead,liens",
        "nlp,ai,limits.cpu,millicores,10000,6000,6000,0,2000,2000,80,0,0",
        "nlp,ai,limits.cpu.A4,millicores,3000,4000,4000,0,0,-1000,134,0,0",
    ]


DESCRIBE = """\
Group:      corp > ai > nlp
Resources:
  RESOURCE                      HARD  USED  SELF  GRANTED  RESERVED  LEFT
  limits.cpu                      10     6     6        0         2     2
  limits.cpu.A4                    3     4     4        0         0    -1
  requests.nvidia.com/gpu          4     0     0        0         0     4
  cash/requests.nvidia.com/gpu   100     0     0        0         0   100
Conditions:
  Ready True: limits.cpu 6/10
  OverQuota True: over quota by limits.cpu.A4=1; growth is refused, nothing is
    stopped
Workloads:
  Deployment default/chat: limits.cpu=4, limits.cpu.A4=4
  Deployment default/search: limits.cpu=2
Children:
  none
Reserved but not counted yet:
  deployments.apps/team-a/web until 2023-11-14T22:13:20.000Z: limits.cpu=2
Events:
  none
Versions:
  created AGO ago
  counted AGO ago, at generation 0 of 1"""


async def test_describe_is_a_page_about_a_group(bizrq: Bizrq) -> None:
    result = await bizrq("describe", "nlp", width=80)
    assert (result.ageless, result.err) == (DESCRIBE, "")
    [page] = json.loads((await bizrq("describe", "nlp", "-o", "json")).out)
    assert [w["name"] for w in page["workloads"]] == ["chat", "search"]
    assert page["workloads"][0]["usage"]["limits.cpu.A4"] == {"unit": "millicores", "amount": 4_000}
    assert [c["type"] for c in page["conditions"]] == ["Ready", "OverQuota"]


async def test_groups_are_shown_with_what_processes_hold_ahead_apart_from_what_is_reserved(bizrq: Bizrq) -> None:
    """It counts as left: they give it back on demand. Where nobody holds anything, no table has a column for it."""
    async with held_ahead(bizrq, "nlp", cpu=1) as line:
        [page] = json.loads((await bizrq("describe", "nlp", "-o", "json")).out)
        assert (len(page["reservations"]), page["ahead"]) == (1, [line])
        amounts = page["resources"]["limits.cpu"]
        assert {key: amounts[key] for key in ("reserved", "left", "ahead", "percentOfHard")} == {
            "reserved": 2_000, "left": 2_000, "ahead": 1_000, "percentOfHard": 80,
        }  # fmt: skip
        shown = (await bizrq("describe", "nlp", width=80)).ageless
        head = "Held ahead by webhook processes, of what is left:\n"
        assert f"{head}  bizrq-webhooks-journal-1: limits.cpu=1\n" in shown
        assert "processes.quota.biz.group" not in shown
        assert re.search(r"RESERVED +LEFT +AHEAD\n +limits.cpu +10 +6 +6 +0 +2 +2 +1\n", shown)
        said = (await bizrq("explain", "nlp")).plain
        assert "  1 of what is left is held ahead by webhook processes, until it is needed" in said
        [row] = csv.DictReader(io.StringIO((await bizrq("report", "nlp", "-r", "limits.cpu.A4", "-o", "csv")).out))
        assert row["ahead"] == "0"
        [row] = csv.DictReader(io.StringIO((await bizrq("get", "nlp", "-o", "csv")).out))
        assert (row["scarcest"], row["ahead"]) == ("limits.cpu.A4", "0")
        wide = (await bizrq("get", "nlp", "-o", "wide", width=120)).ageless
        assert re.search(r"% OF HARD +AHEAD +RESERVATIONS.*\n.* 134% +0 +1 ", wide)
        for width in (None, 120, 60):
            tree = (await bizrq("tree", "nlp", width=width)).plain
            assert re.search(r"AHEAD\n.*limits.cpu .* 1\n", tree), tree
        assert "left 2  ahead 1" in (await bizrq("tree", "nlp", width=30)).plain
    assert "AHEAD" not in (await bizrq("tree", "nlp", width=120)).plain
    assert "AHEAD" not in (await bizrq("get", "nlp", "-o", "wide", width=120)).plain


async def test_fit_and_explain_count_on_what_processes_hold_ahead_and_say_so_where_it_matters(
    bizrq: Bizrq, tmp_path: Path
) -> None:
    """They recall nothing. Two cores of nlp are left, and a process holds one of them."""
    small, large, more = (manifest(tmp_path, name, cpu) for name, cpu in (("small", 1), ("large", 2), ("more", 3)))
    needs = "it needs room that webhook processes hold ahead of nlp (limits.cpu=1): they give it back"
    async with held_ahead(bizrq, "nlp", cpu=1) as line:
        [found] = json.loads((await bizrq("fit", "-f", small, "-o", "json")).out)
        assert (found["fits"], found["warnings"]) == (True, [])
        [found] = json.loads((await bizrq("fit", "-f", large, "-o", "json")).out)
        assert (found["fits"], found["resources"]["limits.cpu"]["left"]) == (True, 2_000)
        assert [text.startswith(needs) for text in found["warnings"]] == [True]
        assert needs in " ".join((await bizrq("explain", "-f", large)).plain.split())
        [found] = json.loads((await bizrq("fit", "-f", more, "-o", "json")).out)
        assert (found["fits"], found["warnings"], found["violations"][0]["left"]) == (False, [], 2_000)
        stored = await bizrq.client.get(GROUPS, "nlp")
        assert line in stored["status"]["reservations"]


@contextlib.asynccontextmanager
async def held_ahead(bizrq: Bizrq, name: str, cpu: int) -> AsyncIterator[str]:
    """Let a process hold cores ahead of a group for a while."""
    stored = await bizrq.client.get(GROUPS, name)
    before = stored["status"].get("reservations", [])
    line = Line("bizrq-webhooks-journal-1", 7, 1, {"limits.cpu": cpu * 10**9}).entry.line
    stored["status"]["reservations"] = sorted([*before, line])
    stored = await bizrq.client.replace(GROUPS, stored, subresource="status")
    try:
        yield line
    finally:
        stored["status"]["reservations"] = before
        await bizrq.client.replace(GROUPS, stored, subresource="status")


async def test_hours_that_workloads_may_still_cost_are_not_left(bizrq: Bizrq) -> None:
    """Admission counts them as used in safe mode. No table has a column for them where there are none."""
    name, before = "cash/requests.nvidia.com/gpu", await bizrq.client.get(GROUPS, "nlp")
    safe = {"spec": {"cash": {"mode": "safe", "maxRunTime": "2h"}}}
    await bizrq.client.patch(GROUPS, "nlp", safe)
    cash = {"status": {"cash": {"liens": {name: "8"}, "carried": {name: "3"}}}}
    await bizrq.client.patch(GROUPS, "nlp", cash, subresource="status")
    try:
        [page] = json.loads((await bizrq("tree", "nlp", "-o", "json")).out)
        amounts = page["resources"][name]
        assert {key: amounts[key] for key in ("used", "left", "liens", "percentOfHard")} == {
            "used": 0, "left": 95 * 3600, "liens": 5 * 3600, "percentOfHard": 5,
        }  # fmt: skip
        shown = (await bizrq("describe", "nlp", width=90)).ageless
        assert re.search(
            r"RESERVED +LIENS +LEFT\n(.*\n)* +cash/requests.nvidia.com/gpu +100 +0 +0 +0 +0 +5 +95\n", shown
        )
        said = (await bizrq("explain", "nlp")).plain
        assert f"{name}: 5 of 100 taken, 95 left" in said
        assert "  5 that its workloads may still cost until they end (safe mode)" in said
        for width in (None, 120, 60):
            tree = (await bizrq("tree", "nlp", width=width)).plain
            assert re.search(rf"(?m)LIENS\n(.*\n)*.*{name} .*5$", tree), tree
    finally:
        await bizrq.client.patch(GROUPS, "nlp", {"spec": {"cash": None}})
        status = {"status": {"cash": before["status"].get("cash")}}
        await bizrq.client.patch(GROUPS, "nlp", status, subresource="status")
    assert "LIENS" not in (await bizrq("tree", "nlp")).plain


def manifest(folder: Path, name: str, cpu: int) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(deployment(name, "nlp", cpu=str(cpu))))
    return path


async def test_describe_shows_the_events_of_this_very_group_and_no_escapes(bizrq: Bizrq) -> None:
    """Anyone may write an Event in `default` that names a group."""
    events = Resource("", "v1", "events", "Event")
    stored = await bizrq.client.get(GROUPS, "ocr")
    involved = {"apiVersion": stored["apiVersion"], "kind": stored["kind"], "name": "ocr"}
    for name, uid, message in (
        ("ours", stored["metadata"]["uid"], "it is \x1b[31mcounted\x1b]0;t\x07 [red]\u202e"),
        ("other", "00000000-0000-0000-0000-000000000000", "forged"),
        ("none", None, "forged, too"),
    ):
        of = {**involved, "uid": uid} if uid else involved
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": "default"},
            "involvedObject": of,
        }
        await bizrq.client.create(events, {**event, "reason": "R", "message": message, "type": "Normal"})
    try:
        said = await bizrq("describe", "ocr", width=100)
        assert "R: it is \ufffd[31mcounted\ufffd]0;t [red]\ufffd" in said.plain
        assert "forged" not in said.plain
        [page] = json.loads((await bizrq("describe", "ocr", "-o", "json")).out)
        assert [event["message"] for event in page["events"]] == ["it is \x1b[31mcounted\x1b]0;t\x07 [red]\u202e"]
    finally:
        for name in ("ours", "other", "none"):
            await bizrq.client.delete(events, name, "default")


@pytest.mark.parametrize(
    ("environment", "is_ascii"),
    [
        ({"LC_ALL": "C"}, True),
        ({"LC_ALL": "POSIX", "LANG": "de_DE.UTF-8"}, True),
        ({"LANG": "C"}, True),
        # As Python sets it in the locale C.
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),
        ({"LC_CTYPE": "C", "LANG": "de_DE.UTF-8"}, True),
        ({"LC_ALL": "C.UTF-8", "LANG": "C"}, False),
        ({"LC_CTYPE": "C.UTF-8"}, False),
        ({"LANG": "de_DE.UTF-8"}, False),
        ({}, False),
    ],
)
async def test_the_locale_c_asks_for_ascii(bizrq: Bizrq, environment: dict[str, str], is_ascii: bool) -> None:
    for width in (80, None):
        assert (await bizrq("tree", "ai", width=width, **environment)).out.isascii() == is_ascii, width


async def test_a_program_in_the_locale_c_prints_ascii(bizrq: Bizrq) -> None:
    """A process of its own: Python has its own idea of that locale."""
    here = {"PATH": os.environ["PATH"], "KUBECONFIG": str(bizrq.kubeconfig), "LANG": "C"}
    words = [Path(sys.executable).with_name("bizrq"), "tree", "ai"]
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, env=here, check=True)
    assert done.stdout.isascii()
    assert b"|- nlp" in done.stdout


@pytest.mark.parametrize("line", ["tree", "get", "report", "report --hours", "forecast", "audit", "describe nlp"])
async def test_no_line_of_a_pipe_ends_with_a_blank(bizrq: Bizrq, line: str) -> None:
    out = (await bizrq(*line.split())).out
    assert [text for text in out.splitlines() if text != text.rstrip()] == []


async def test_a_wrapped_condition_is_told_from_the_next_one(bizrq: Bizrq) -> None:
    lines = (await bizrq("describe", "nlp", width=60)).plain.splitlines()
    start = lines.index("Conditions:") + 1
    found = lines[start : next(at for at in range(start, len(lines)) if not lines[at].startswith(" "))]
    assert [line.split()[0] for line in found if not line.startswith("    ")] == ["Ready", "OverQuota"]
    assert len(found) > 2


EXPLAIN = """\
corp > ai > nlp
  OverQuota True: over quota by limits.cpu.A4=1; growth is refused, nothing is
    stopped
  limits.cpu.A4: 4 of 3 taken, over by 1: nothing is stopped, growth is refused
    4 by its own workloads: Deployment default/chat 4
    its parent ai does not limit it: to raise nlp, ask who manages ai
  limits.cpu: 8 of 10 taken, 2 left
    6 by its own workloads: Deployment default/chat 4, Deployment
      default/search 2
    2 reserved for changes in progress
  requests.nvidia.com/gpu: 0 of 4 taken, 4 left
  cash/requests.nvidia.com/gpu: 0 of 100 taken, 100 left"""


async def test_explain_shows_what_uses_a_groups_budget(bizrq: Bizrq) -> None:
    result = await bizrq("explain", "nlp", width=80)
    assert (result.plain, result.err) == (EXPLAIN, "")
    above = (await bizrq("explain", "ai", "-n", "x")).plain
    assert "16 granted to its children: vision 12 (4 of it left), nlp 4 (4 of it left)" in above
    assert "its parent corp has nothing left; siblings with some left: none" in above


@pytest.mark.parametrize("verb", ["get", "tree", "report", "forecast", "audit", "describe", "explain"])
async def test_a_missing_group_is_reported_with_existing_names(bizrq: Bizrq, verb: str) -> None:
    result = await bizrq(verb, "npl")
    assert (result.code, result.out) == (2, "")
    assert result.err == "bizrq: there is no group npl; there are: ai, corp, nlp, ocr, vision\n"


async def test_of_many_names_the_nearest_are_suggested() -> None:
    many = [f"team-{number}" for number in range(1000)]
    assert alternatives("teem-7", many).startswith("the nearest of 1000: team-7")
    assert alternatives("zzz", many) == "there are 1000, like team-0, team-1, team-2"
    assert alternatives("zzz", []) == "there are: none"


async def test_models_of_configured_devices_need_the_configuration(bizrq: Bizrq, tmp_path: Path) -> None:
    """Without it `.X1` could be part of the name instead of a model."""
    npu = "requests.example.com/npu"
    config = tmp_path / "config.yaml"
    config.write_text("gpuResources: [example.com/npu]")
    await bizrq.client.create(GROUPS, group("npus", **{npu: "8", f"{npu}.X1": "4", "limits.cpu": "1"}))
    try:
        tree = (await bizrq("tree", "npus", "-r", npu, "--config", config, width=80)).plain.splitlines()
        assert [line.split()[:2] for line in tree[1:-1]] == [["npus", npu], [".X1", "????????"]]
        report = (await bizrq("report", "npus", "-r", npu, "-o", "csv", "--config", config)).out.splitlines()
        assert [line.split(",")[2] for line in report[1:]] == [npu, f"{npu}.X1"]
        assert len((await bizrq("report", "npus", "-r", npu, "-o", "csv")).out.splitlines()) == 2
        result = await bizrq("tree", "--config", tmp_path / "none")
        assert (result.code, result.err.count("\n")) == (2, 1)
    finally:
        await bizrq.client.delete(GROUPS, "npus")


async def test_a_resource_that_no_group_limits_is_reported_with_those_that_are(bizrq: Bizrq) -> None:
    result = await bizrq("tree", "-r", "limits.memory")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(
        "bizrq: no group has a ceiling for limits.memory; there are: limits.cpu, limits.cpu.A4,"
    )


@pytest.mark.parametrize("verb", ["tree", "get"])
async def test_watch_prints_every_change_until_it_is_interrupted(bizrq: Bizrq, verb: str) -> None:
    """It runs as a process because a signal ends it. Ctrl-C is no failure."""
    words = [verb, "vision", "-o", "csv", "--watch", "--kubeconfig", bizrq.kubeconfig]
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("bizrq"), *map(str, words), stdout=asyncio.subprocess.PIPE
    )
    async with until_interrupted(process) as out:
        first = (await out.readline()).decode()
        await out.readline()
        await bizrq.client.patch(GROUPS, "vision", {"metadata": {"labels": {"seen": verb}}})
        while (await out.readline()).decode() != first:
            pass


async def test_a_recount_that_finds_the_same_is_no_change() -> None:
    """Its status says when it was counted, and from which versions."""
    item = group("nlp", cpu="10")
    item["metadata"]["resourceVersion"] = "7"
    status = {"used": {"limits.cpu": "1"}, "countedAt": {"pods": "6"}, "lastReconcileTime": "2026-11-28T00:00:00Z"}
    again = {**item, "metadata": {**item["metadata"], "resourceVersion": "9"}}
    later = {**status, "countedAt": {"pods": "8"}, "lastReconcileTime": "2026-11-28T00:05:00Z"}
    first, second, third = (
        _without_versions(each)
        for each in (
            {**item, "status": status},
            {**again, "status": later},
            {**again, "status": {**later, "used": {"limits.cpu": "2"}}},
        )
    )
    assert first == second != third


async def test_each_of_many_groups_is_watched(bizrq: Bizrq) -> None:
    """Each watch has a connection of its own: none waits until another ends."""
    names = ["corp", "ai", "nlp", "vision", "ocr"]
    words = ["get", *names, "-o", "name", "--watch", "--kubeconfig", bizrq.kubeconfig]
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("bizrq"), *map(str, words), stdout=asyncio.subprocess.PIPE
    )
    async with until_interrupted(process) as out:
        for name in names:
            first = {(await out.readline()).decode().strip() for _ in names}
            assert first == {f"bizgroupresourcequota.quota.biz.group/{each}" for each in names}
            await bizrq.client.patch(GROUPS, name, {"metadata": {"labels": {"seen": "many"}}})


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("`tree`", "tree nlp -o json"),
        ("`usage`", "usage -f - -o json"),
        ("`status`", "status -o json"),
        ("`get`, CSV alone", "get -o csv"),
    ],
)
async def test_the_page_of_the_command_line_has_every_key(bizrq: Bizrq, row: str, words: str) -> None:
    pod = '{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}'
    out = (await bizrq(*words.split(), stdin=pod)).out
    rows = list(csv.DictReader(io.StringIO(out))) if words.endswith("csv") else json.loads(out)
    first = rows[0] if isinstance(rows, list) else rows
    page = (Path(__file__).parents[3] / "docs" / "cli.md").read_text("utf-8")
    [line] = [line for line in page.splitlines() if line.startswith(f"| {row}")]
    assert set(first) <= {word.strip("`") for word in re.findall("`[^`]+`", line)}, line
