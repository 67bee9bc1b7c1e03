"""What the words around bizrq claim, held against the code."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import typer
import yaml
from prometheus_client import REGISTRY, Counter
from prometheus_client.metrics import MetricWrapperBase
from pydantic import BaseModel
from typer.main import get_command

import web.main
from bizrq import registration
from bizrq.api.config import Configuration, parse
from bizrq.api.group import KIND, from_dict, hard_of, terms_of
from bizrq.builtin import builtin_registry
from bizrq.cli.main import app
from bizrq.metrics import WatchAges
from bizrq.quota.reservation import parse_reservation
from bizrq.quota.verdict import BAD_OBJECT, RETRYABLE, Reason
from bizrq.settings import load, settings
from bizrq.workloads.describe import table
from bizrq.workloads.kinds.reader import KEYS, ROLE_KEYS
from certs.main import certs
from controller.main import control
from controller.metrics import OF_GROUPS
from controller.queue import QueueState, WorkQueue
from tests.support.catalog import CATALOG
from webhooks.main import serve

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")),
    *sorted(DOCS.rglob("*.md")),
]

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")


def page(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def blocks(text: str, language: str = "") -> list[str]:
    """What stands in fences of this language."""
    return [body for found, body in _BLOCK.findall(text) if found == language]


def prose(text: str) -> str:
    return _BLOCK.sub("", text)


def anchors(text: str) -> set[str]:
    """Headings as a link to them names them."""
    heads = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(path: Path) -> None:
    """A link inside the repository leads to a file, and its anchor to a heading of that file."""
    for link in _LINK.findall(prose(path.read_text("utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        found = (path.parent / target).resolve() if target else path
        assert found.is_relative_to(ROOT), link
        assert found.exists(), link
        if anchor:
            assert anchor in anchors(found.read_text("utf-8")), link


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_are_short_enough_to_read_in_a_diff(path: Path) -> None:
    """Tables and code may be long, prose has 120 characters a line."""
    for line in prose(path.read_text("utf-8")).splitlines():
        assert len(line) <= 120 or line.startswith("|"), line


def test_every_page_is_linked_from_somewhere() -> None:
    """A page that nothing leads to is not read."""
    linked = {
        (path.parent / link.partition("#")[0]).resolve()
        for path in PAGES
        for link in _LINK.findall(path.read_text("utf-8"))
        if not re.match(r"[a-z]+:", link)
    }
    assert {path for path in PAGES if path.name != "README.md" or path.parent != ROOT} <= linked


# Metrics.


def test_the_table_of_metrics_has_every_metric_and_no_other() -> None:
    """With its labels. A process declares its metrics when it is loaded, and these imports load all of them."""
    importlib.import_module("webhooks.app")
    importlib.import_module("web.app")
    declared: dict[str, tuple[str, ...]] = {}
    for each in REGISTRY._collector_to_names:
        if isinstance(each, MetricWrapperBase):
            suffix = "_total" if isinstance(each, Counter) else ""
            declared[each._name + suffix] = tuple(each._labelnames)
    declared |= {family.name: family.labels for family in OF_GROUPS}
    queue = QueueState(WorkQueue(), lambda: True)
    for family in (*WatchAges(list).collect(), *queue.collect()):
        declared[family.name] = tuple(family._labelnames)
    # Those of the bare process are not ours to describe.
    declared = {name: labels for name, labels in declared.items() if not name.startswith(("python_", "process_"))}
    section = page("docs/operations.md").partition("## Metrics")[2].partition("## Logs")[0]
    rows = re.findall(r"^\| `([a-z_]+)` \| (.*?) \|", section, re.MULTILINE)
    assert {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in rows} == declared


# Commands.


def commands(text: str) -> Iterator[list[str]]:
    """The commands in fences without a language and in backquotes, as words; comments and continuations read."""
    lines = [line for body in blocks(text) for line in body.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`([^`\n]+)`", prose(text))
    for line in lines:
        for command in re.split(r"[|&]", line):
            try:
                words = shlex.split(command, comments=True)
            except ValueError:
                continue
            if words:
                yield words


def options(function: object, name: str) -> set[str]:
    one = typer.Typer(add_completion=False)
    one.command(name)(function)  # type: ignore[type-var]
    return {option for parameter in get_command(one).params for option in (*parameter.opts, *parameter.secondary_opts)}


VERBS = {command.name or "": command.callback for command in app.registered_commands}
PROCESSES = {
    "bizrq-webhooks": serve,
    "bizrq-controller": control,
    "bizrq-certs": certs,
    "bizrq-web": web.main.serve,
}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_have_verbs_and_flags_that_exist(path: Path) -> None:
    """Every `bizrq VERB`, `bizrq-PROCESS` and `make TARGET` that is written down would be understood."""
    targets = set(re.findall(r"^([a-z-]+):", page("Makefile"), re.MULTILINE))
    for words in commands(path.read_text("utf-8")):
        program = words[0].removeprefix(".venv/bin/")
        if words[:2] == ["kubectl", "bizrq"]:
            program, words = "bizrq", words[1:]
        if program == "make":
            variables = {word.partition("=")[0] for word in words[1:] if "=" in word}
            assert {word for word in words[1:] if "=" not in word} <= targets, words
            assert all(f"$({name})" in page("Makefile") for name in variables), words
        given = {word.partition("=")[0] for word in words[1:] if re.match(r"--?[a-z]", word)}
        if program == "bizrq" and len(words) > 1 and not words[1].startswith("-"):
            assert words[1] in VERBS, words
            assert given <= options(VERBS[words[1]], words[1]) | {"--help"}, words
        elif program in PROCESSES:
            assert given <= options(PROCESSES[program], program) | {"--help"}, words


@pytest.mark.parametrize("name", sorted(PROCESSES))
def test_operations_name_every_flag_of_the_processes(name: str) -> None:
    """A flag that is not written down is not found; one that is written down exists."""
    flags = next(p for p in page("docs/operations.md").split("\n\n") if p.startswith(f"`{name}`:"))
    assert set(_FLAG.findall(flags)) == options(PROCESSES[name], name)


def test_operations_name_every_flag_of_up() -> None:
    """`bizrq up` has the flags that operations list."""
    flags = next(p for p in page("docs/operations.md").split("\n\n") if p.startswith("`bizrq up`:"))
    assert set(_FLAG.findall(flags)) == options(VERBS["up"], "up")


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_explains_itself(verb: str) -> None:
    """`bizrq VERB --help` answers, in a fresh process as a person starts it."""
    done = subprocess.run(
        [Path(sys.executable).parent / "bizrq", verb, "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# What pages have to be complete about.


def test_refusals_has_every_reason_with_its_code() -> None:
    """Each reason stands in the first cell of a row, with the code that the API server passes on."""
    rows = [line.split("|") for line in page("docs/refusals.md").splitlines() if line.startswith("| `")]
    told = {(reason, row[2].strip()) for row in rows for reason in re.findall(r"`(\w+)`", row[1])}
    for reason in Reason:
        code = "429" if reason in RETRYABLE else "422" if reason in BAD_OBJECT else "403"
        code = "409" if reason is Reason.TAKEN else code
        assert (str(reason), code) in told, reason
    assert {reason for reason, _ in told} == set(map(str, Reason))


def keys(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def test_configuration_has_every_key_and_no_other() -> None:
    """The tables' first cells are the keys of the configuration and of its maps."""
    text = page("docs/configuration.md")
    told = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    expected = keys(Configuration)
    for kind in vars(sys.modules[Configuration.__module__]).values():
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind.__module__ == Configuration.__module__:
            expected |= keys(kind)
    assert told == expected


def test_the_grammar_of_kinds_has_every_key_and_no_other() -> None:
    """The first cells of the two tables are the keys of a declaration and of its roles, in any order."""
    tables = re.findall(r"\n\| key \| value \|\n((?:\|.*\n)+)", page("docs/adapters.md"))
    listed = [re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) for table in tables]
    assert [sorted(found) for found in listed] == [sorted(KEYS), sorted(ROLE_KEYS)]


@pytest.mark.parametrize("name", ["docs/configuration.md", "docs/adapters.md"])
def test_examples_of_configuration_are_accepted(name: str) -> None:
    """What stands in a fence of YAML can be given with --config."""
    found = blocks(page(name), "yaml")
    assert found
    for example in found:
        document = yaml.safe_load(example)
        parse(document)
        settings(document)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_groups_of_the_examples_can_be_read(path: Path) -> None:
    """Names, amounts and terms are such as admission takes."""
    for document in yaml.safe_load_all(path.read_text("utf-8")):
        if document["kind"] == KIND:
            group = from_dict(document)
            assert hard_of(group, CATALOG)
            assert terms_of(group, CATALOG)


def test_kinds_has_the_table_that_the_declarations_say() -> None:
    """`python deploy/kinds.py` prints it; every kind and every name in count/ is there."""
    assert table(builtin_registry()) in page("docs/kinds.md")
    for adapter in builtin_registry().charged:
        assert f"`count/{adapter.resource}`" in table(builtin_registry()), adapter.resource


def test_the_example_of_a_reservation_can_be_read() -> None:
    """The line in the page is an entry of the format that the page describes."""
    [line] = [line for body in blocks(page("docs/reservations.md")) for line in body.splitlines() if "uid=1" in line]
    entry = parse_reservation(line)
    assert str(entry) == line
    assert entry.base


# What is installed.


def script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_rights_that_compose_mounts_are_what_the_code_says() -> None:
    """`python deploy/rbac.py` would write the file as it is."""
    assert page("deploy/rbac.yaml") == script(ROOT / "deploy/rbac.py").document("bizrq-system", None)


def test_the_policies_that_compose_mounts_are_what_the_code_says() -> None:
    """`python deploy/policies.py --webhook-url https://webhooks:8443` would write the file as it is."""
    written = script(ROOT / "deploy/policies.py").document("bizrq-system", "https://webhooks:8443")
    assert page("deploy/policies.yaml") == written
    assert "--webhook-url https://webhooks:8443" in page("docker-compose.yml")


def test_the_api_priority_that_compose_mounts_is_what_the_code_says() -> None:
    """`python deploy/priority.py` would write the file as it is."""
    assert page("deploy/priority.yaml") == script(ROOT / "deploy/priority.py").document("bizrq-system")


def test_a_kind_of_ones_own_gets_rules_and_rights_by_configuration(tmp_path: Path) -> None:
    """The example of the page on kinds of your own, given to all: nothing else has to be written."""
    config = tmp_path / "config.yaml"
    [config_text] = blocks(page("docs/adapters.md"), "yaml")
    config.write_text(config_text)
    made = registration.configuration(load(config), registration.by_service("bizrq-system"), namespace="bizrq-system")
    ruled = {
        webhook["name"].partition(".")[0]: resource
        for webhook in made["webhooks"]
        for rule in webhook["rules"]
        for resource in rule["resources"]
        if rule["apiGroups"] == ["ml.example.com"]
    }
    selected = ("workloads", "defaulted", "required")
    named = dict.fromkeys((*selected, *(f"{name}-filtered" for name in selected)), "trainers")
    assert ruled == {**named, "scale": "trainers/scale"}
    documents = yaml.safe_load_all(script(ROOT / "deploy/rbac.py").document("bizrq-system", config))
    rules = [
        rule for found in documents for rule in found.get("rules", ()) if "ml.example.com" in rule.get("apiGroups", ())
    ]
    assert rules == [{"apiGroups": ["ml.example.com"], "resources": ["trainers"], "verbs": ["get", "list", "watch"]}]


def test_compose_starts_processes_with_flags_that_exist_and_mounts_files_that_are_there() -> None:
    """docker-compose.yml names existing commands, files, services and volumes."""
    document = yaml.safe_load(page("docker-compose.yml"))
    services = document["services"]
    for service in services.values():
        program, *words = shlex.split(service.get("command") or "")[:1] or [""]
        if program in PROCESSES:
            given = {word for word in shlex.split(service["command"]) if word.startswith("--")}
            assert given <= options(PROCESSES[program], program), words
        for other in service.get("depends_on", {}):
            assert other in services
        for mount in service.get("volumes", ()):
            source = mount.partition(":")[0]
            if source.startswith("./.bizrq"):
                continue
            assert (ROOT / source).is_file() if source.startswith("./") else source in document["volumes"], mount
    mounted = {mount.partition(":")[0] for mount in services["k3s"]["volumes"]}
    assert {f"./crds/{path.name}" for path in (ROOT / "crds").glob("*.yaml")} <= mounted


def test_the_image_has_the_packages() -> None:
    """Every package of the wheel but the sandbox is copied."""
    dockerfile = page("Dockerfile")
    assert "COPY sandbox" not in dockerfile
    assert "--extra" not in dockerfile
    assert "sandbox" not in page(".dockerignore")
    for package in ("bizrq", "webhooks", "controller", "web", "certs", "crds"):
        assert f"COPY {package} {package}\n" in dockerfile
        assert f"!{package}\n" in page(".dockerignore")


# The map of the code.


def test_architecture_has_a_row_for_every_module_and_no_other() -> None:
    """Below the heading of each package, the first cells name its files; a folder of one file a verb or kind is one."""
    sections = re.split(r"^### ", page("docs/architecture.md"), flags=re.MULTILINE)[1:]
    tables = {heading: text for heading, _, text in (section.partition("\n") for section in sections)}
    whole = ("bizrq/cli/verbs/", "bizrq/workloads/special/", "bizrq/workloads/ownership/")
    for heading, text in tables.items():
        if heading == "sandbox":
            continue
        rows = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
        named = {f"{heading}/{name}" for row in rows for name in re.findall(r"`([\w./]+)`", row)}
        files = {
            next((folder for folder in whole if name.startswith(folder)), name)
            for path in (ROOT / heading).rglob("*")
            if path.suffix in {".py", ".yaml"} and path.stat().st_size
            for name in [path.relative_to(ROOT).as_posix()]
            if path.name != "__init__.py"
        }
        assert named == files, heading
