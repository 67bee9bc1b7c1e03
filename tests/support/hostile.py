"""What nobody should send: mutated objects, reviews of every path and manifests, each from a seed."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
import os
import random
import re
import socket
import time
from collections.abc import Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import typer
import typer.main
import yaml

from bizrq import registration
from bizrq.cli.cluster import ClusterFlags
from bizrq.cli.main import run
from bizrq.cli.output.failure import Failure, warn
from bizrq.cli.verbs.fit import fit
from bizrq.cli.verbs.usage import UsageOutput, usage
from bizrq.kube.client import Resource
from bizrq.units.text import printable
from bizrq.workloads.labels import LABEL
from tests.support import objects
from tests.support.objects import Object, deployment, group, rayjob, rollout, template, tfjob

#: Characters that a terminal obeys or that change the direction of writing.
ESCAPES = ("\x1b[31m", "\x1b]0;title\x07", "\x9b2J", "\u202eabc", "\u2066", "\x7f", "\r", "\x08", "\U000e0041")
#: What the library that prints would obey.
MARKUP = ("[red]", "[/]", "[link=http://x]y[/link]", ":bomb:", "[bold", "[/nothing]")
#: What is shown where markup is obeyed.
OBEYED = ("\N{BOMB}", "\x1b]8;")
STYLE = re.compile(r"\x1b\[[0-9;]*m")
#: Typer builds all verbs anew for each call of the program, which a process makes once.
_COMMAND = functools.cache(typer.main.get_command)
#: Of the group nlp, into which all of it goes.
HARD = {"cpu": "1000000", "gpu": "1000000", "hours": "1000000", "limits.cpu.A4": "1000"}
#: Scalars that a reader of numbers may take long for, or fail at; as text, because a writer would quote them. The last
#: three are words, which an error might repeat.
_LONG = (
    *("0x" + "f" * 6000, ":".join(["59"] * 20_000), "9" * 5000, "0b" + "1" * 20_000, "1" * 20_000 + ".5"),
    *("y" * 100_000, "'" + "ü b/" * 20_000 + "'", '"' + r"\x1b[31m" * 10_000 + '"'),
)
#: Characters of the longest line of an error.
_LONGEST_LINE = 5000
_ODD: tuple[Any, ...] = (
    *(None, -1, 1.5, 10**30, "", "x" * 300, "\x00", [], {}, [[]], True, {"a": None}, "٣", "1e999", ".inf"),
    *(float("inf"), float("nan"), "\ud800", "9" * 4000, "1" + "0" * 60 + "Ei", -(2**63), "true", "~", "0x10"),
)


def mutated(rng: random.Random, value: Any, depth: int = 0) -> Any:
    """The value with a part of it replaced by something that nobody expects, or with a key renamed."""
    if depth > 8 or rng.random() < 0.08:
        return rng.choice([*_ODD, *ESCAPES, *MARKUP])
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        changed = {**value, key: mutated(rng, value[key], depth + 1)}
        if rng.random() < 0.1:
            changed[rng.choice([*ESCAPES, *MARKUP])] = changed.pop(key)
        return changed
    if isinstance(value, list) and value:
        index = rng.randrange(len(value))
        return [*value[:index], mutated(rng, value[index], depth + 1), *value[index + 1 :]]
    if isinstance(value, str) and rng.random() < 0.5:
        return value + rng.choice([*ESCAPES, *MARKUP])
    return mutated(rng, value, 9)


def manifest(rng: random.Random) -> str:
    """A mutated manifest as YAML or JSON, at times not even that."""
    obj = copy.deepcopy(rng.choice(_MANIFESTS))
    for _ in range(rng.randint(1, 3)):
        obj = mutated(rng, obj)
    return _noisy(rng, yaml.safe_dump(obj, allow_unicode=True) if rng.random() < 0.5 else json.dumps(obj))


def _noisy(rng: random.Random, text: str) -> str:
    """The text, at times with a sign of YAML anywhere, or with a long number instead of a value."""
    if rng.random() < 0.1:
        long = rng.choice(_LONG)
        return re.sub(r"(?<=: )[^\s,{\[]+", lambda _: long, text, count=rng.randint(1, 3))
    if rng.random() < 0.3:
        at = rng.randrange(len(text))
        noise = ["&a ", "*a", "<<: ", "{", "]", "\t", "!!int ", "\x1b", "? ", "---\n"]
        return text[:at] + rng.choice(noise) + text[at:]
    return text


def configuration(rng: random.Random) -> str:
    """A configuration with a mutated key as YAML, at times not even that; at times a manifest."""
    keys = rng.sample(list(_CONFIGURATION), rng.randint(1, 4))
    part = {
        key: mutated(rng, each) if rng.random() < 0.3 else each for key, each in _CONFIGURATION.items() if key in keys
    }
    return _mutated_text(rng, _CONFIGURATION, part)


def kubeconfig(rng: random.Random) -> str:
    """A mutated kubeconfig as YAML, at times not even that; at times a manifest.

    Its first context is of a server that does not answer, its second one has a plugin.
    """
    lists = copy.deepcopy(_KUBECONFIG)
    for section in (lists["clusters"][0]["cluster"], lists["users"][0]["user"], lists["contexts"][0]["context"]):
        for key in rng.sample(list(section), len(section) // 2):
            if key not in ("server", "cluster", "user"):
                del section[key]
        key = rng.choice(list(section))
        if rng.random() < 0.2:
            section[key] = rng.choice(_ADDRESSES) if rng.random() < 0.5 else mutated(rng, section[key])
    return _mutated_text(rng, lists, lists)


def plain_kubeconfig() -> str:
    """One that nobody has mutated."""
    return yaml.safe_dump(_KUBECONFIG)


def _mutated_text(rng: random.Random, all_of_it: Object, part: Object) -> str:
    """The part as text, seldom a manifest or all of it with mutations anywhere."""
    if rng.random() < 0.1:
        return manifest(rng)
    if rng.random() < 0.5:
        return yaml.safe_dump(part, allow_unicode=True)
    return _noisy(rng, yaml.safe_dump(mutated(rng, all_of_it), allow_unicode=True))


def review(rng: random.Random) -> tuple[str, bytes]:
    """A path, and the body of a mutated review that it gets; one in eight is no JSON."""
    path, original = rng.choice(_REVIEWS)
    changed: Any = original
    for _ in range(rng.randint(1, 3)):
        # What admission reads is in the objects, so most mutations are there.
        part = rng.choice(("object", "object", "oldObject", ""))
        request = changed.get("request") if isinstance(changed, dict) else None
        if isinstance(request, dict) and request.get(part):
            changed = {**changed, "request": {**request, part: mutated(rng, request[part])}}
        else:
            changed = mutated(rng, changed)
    body = json.dumps(changed).encode("utf-8", "surrogatepass")
    if rng.random() < 0.125:
        at = rng.randrange(len(body))
        body = body[:at] + bytes([rng.randrange(256)]) + body[at + rng.randrange(3) :]
    return path, body


def surroundings() -> list[Object]:
    """What the reviews and manifests refer to, besides the group nlp of `HARD`."""
    return [objects.device_class("gpu"), objects.claim("s", 2), deployment("web", "nlp", 2)]


def usage_of(path: Path, form: UsageOutput) -> tuple[str, str, float]:
    """What `bizrq usage` prints, its error, and the processor time that it took in seconds."""
    out, err = io.StringIO(), io.StringIO()
    began = time.thread_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            usage([path], output=form)
        except Failure as failure:
            warn(str(failure))
    return out.getvalue(), err.getvalue(), time.thread_time() - began


class _Terminal(io.StringIO):
    """Shows colours, and would obey what is written to it."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def fit_of(path: Path, kubeconfig: Path) -> tuple[int, str, str, float]:
    """The exit code of `bizrq fit`, what it shows on a terminal, its error, and the processor time in seconds.

    Call it in a thread without an event loop. To read the flags is no part of the time.
    """
    out, err, code = _Terminal(), io.StringIO(), 0
    shown = {"COLUMNS": "80", "LINES": "60", "TERM": "xterm-256color"}
    began = time.thread_time()
    with mock.patch.dict(os.environ, shown), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            fit([path], where=ClusterFlags(kubeconfig=kubeconfig))
        except Failure as failure:
            warn(str(failure))
            code = failure.code
        except typer.Exit as ended:
            code = ended.exit_code
    return code, out.getvalue(), err.getvalue(), time.thread_time() - began


@dataclass(frozen=True)
class Called:
    """What a program said: its exit code, what it showed on a terminal, and the processor time in seconds."""

    code: int
    out: str
    err: str
    seconds: float


def called(*words: object) -> Called:
    """Run the program `bizrq` on a terminal, and look up no host. What a person would see as a traceback is raised.

    Call it in a thread without an event loop. To build the verbs, which a process does once, is no part of the time.
    """
    out, err, code = _Terminal(), _Terminal(), 0
    shown = {"COLUMNS": "80", "LINES": "60", "TERM": "xterm-256color", "PAGER": "cat"}
    with (
        mock.patch.dict(os.environ, shown),
        mock.patch("sys.argv", ["bizrq", *map(str, words)]),
        mock.patch("typer.main.get_command", _COMMAND),
        mock.patch("socket.getaddrinfo", _no_host),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        began = time.thread_time()
        try:
            run()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        seconds = time.thread_time() - began
    return Called(code, out.getvalue(), err.getvalue(), seconds)


def _no_host(host: bytes | str | None, *_: object, **__: object) -> NoReturn:
    # The true one does this first, and fails so.
    if isinstance(host, str):
        host.encode("idna")
    raise socket.gaierror(socket.EAI_NONAME, "no such host")


def check_called(done: Called, codes: Container[int], text: str) -> None:
    """Fail for another exit code, for an error without a clear line, and for what a terminal would obey."""
    assert done.code in codes, (done, text)
    check_shown(done.out, done.err, text)
    if done.code:
        assert done.err.startswith("bizrq: "), (done, text)
        assert "Traceback" not in done.err, (done, text)


def check_shown(out: str, err: str, text: str) -> None:
    """Fail for output that a terminal would obey, but for colours, and for an error of several lines, or a long one."""
    assert len(err.splitlines()) <= 1, (err, text)
    assert len(err) <= _LONGEST_LINE, (err[:_LONGEST_LINE], text)
    for shown in (STYLE.sub("", out), err):
        assert printable(shown) == shown, (ascii(shown), text)
        assert not any(sign in shown for sign in OBEYED), (ascii(shown), text)


def check_answer(status: int, text: str) -> None:
    """Fail for an answer to a review that is none, or that would harm a terminal."""
    if status != 200:
        assert printable(text) == text, ascii(text)
        return
    response = json.loads(text)["response"]
    code = 0 if response["allowed"] else response["status"]["code"]
    assert code in (0, 400, 403, 409, 422, 429), text
    for said in (*response.get("warnings", ()), *([] if response["allowed"] else [response["status"]["message"]])):
        assert said, text
        assert printable(said) == said, ascii(said)
        assert len(said) < 5000, said[:200]


def reviews() -> list[tuple[str, Object]]:
    """Reviews that are as they should be, at least one for each path."""
    return copy.deepcopy(_REVIEWS)


def _of(path: registration.ReviewEndpoint, obj: Object | None, old: Object | None, **more: Any) -> tuple[str, Object]:
    about = obj or old or {}
    resource: Resource = more.pop("resource", None) or objects.OF_KIND[about["kind"]]
    request = {
        "uid": "u",
        "kind": {"group": resource.group, "version": resource.version, "kind": about["kind"]},
        "resource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
        "subResource": "",
        "name": about["metadata"]["name"],
        "namespace": about["metadata"].get("namespace", ""),
        "operation": "UPDATE" if obj and old else "CREATE" if obj else "DELETE",
        "userInfo": {"username": "alice", "groups": ["system:authenticated"], "extra": {"scopes": ["a"]}},
        "object": obj,
        "oldObject": old,
        "dryRun": False,
        **more,
    }
    return path.path, {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def _stored(obj: Object, **labels: str) -> Object:
    metadata = {**obj["metadata"], "uid": f"uid-of-{obj['metadata']['name']}", "resourceVersion": "7"}
    return {**obj, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), **labels}}}


def _pod(name: str) -> Object:
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "uid-of-web", "controller": True}
    metadata = {"name": name, "namespace": "default", "labels": {LABEL: "nlp", "app": "x"}}
    spec = {**template()["spec"], "nodeName": "n1"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**metadata, "ownerReferences": [reference]}, "spec": spec}


def _autoscaler() -> Object:
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1,
            "maxReplicas": 9,
        },
    }


def _made() -> list[tuple[str, Object]]:
    web, child = deployment("web", "nlp", 2), group("g", "nlp", **dict.fromkeys(HARD, "1"))
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web", "namespace": "default"}}
    autoscalers = Resource("autoscaling", "v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler")
    claim = _stored(objects.claim("s", 2))
    return [
        _of(registration.GROUPS, child, None),
        _of(registration.GROUPS, _stored(child), _stored(group("g", "nlp", **dict.fromkeys(HARD, "2")))),
        _of(registration.GROUPS, None, _stored(child)),
        _of(registration.WORKLOADS, _stored(web), None),
        _of(registration.WORKLOADS, _stored(deployment("web", "nlp", 3)), _stored(web)),
        _of(registration.WORKLOADS, _stored(tfjob("t", "nlp", 2)), None),
        _of(registration.WORKLOADS, _stored(rayjob("j", "nlp", 2)), None),
        _of(registration.WORKLOADS, _stored(rollout("c", "nlp")), None),
        _of(registration.WORKLOADS, _stored(objects.sharing(deployment("d", "nlp"), "s")), None),
        _of(registration.WORKLOADS, _stored(_pod("p")), None),
        _of(registration.WORKLOADS, _stored(_pod("p")), _stored(_pod("p")), subResource="resize"),
        _of(
            registration.SCALE,
            {**scale, "spec": {"replicas": 5}},
            {**scale, "spec": {"replicas": 2}},
            subResource="scale",
            resource=objects.DEPLOYMENTS,
        ),
        _of(registration.CHILDREN, _stored(_pod("p"), app="y"), _stored(_pod("p"))),
        _of(registration.VERSIONS, None, _stored({**web, "kind": "ReplicaSet"})),
        _of(registration.REFERENCES, _stored(deployment("web", None, 2, cpu="2")), _stored(web)),
        _of(registration.REFERENCES, _stored(objects.claim_template("ct", 2)), None),
        _of(registration.REFERENCES, None, _stored(objects.claim("unused", 2))),
        _of(registration.CLAIMS, _stored(objects.claim("another", 2), **{LABEL: "nlp"}), None),
        _of(registration.CLAIMS, _stored(objects.claim("s", 2), **{LABEL: "nlp"}), claim),
        _of(
            registration.NAMESPACES,
            objects.namespace("n", **{LABEL: "nlp"}),
            objects.namespace("n"),
            resource=objects.NAMESPACES,
        ),
        _of(registration.CORRECTIONS, objects.correction("c", "nlp", {"requests.nvidia.com/gpu": "1"}), None),
        _of(registration.AUTOSCALERS, _autoscaler(), None, resource=autoscalers),
        _of(registration.WORKLOADS, _stored(objects.cronjob("n", "nlp")), None, resource=objects.CRONJOBS),
        _of(
            registration.INDIRECT,
            _stored(objects.inference_service("i", "nlp", most=3)),
            None,
            resource=objects.INFERENCE_SERVICES,
        ),
    ]


_REVIEWS = _made()
_MANIFESTS = [
    deployment("web", "nlp", 2),
    tfjob("t", "nlp", 2),
    rayjob("j", "nlp", 2),
    rollout("c", "nlp"),
    group("g", "nlp", **dict.fromkeys(HARD, "1")),
    objects.sharing(deployment("d", "nlp"), "s"),
]
_ADAPTER: Object = {
    "match": {"group": "ml.example.com", "kind": "Trainer", "resource": "trainers", "versions": ["v1"]},
    "roles": [{"name": "worker", "count": [{"path": "spec.replicas", "default": 1}], "template": ["spec.template"]}],
    "scale": "spec.replicas",
    "zeroWhen": [{"path": "spec.paused", "equals": True}],
    "finishedWhen": {"phase": {"path": "status.phase", "values": ["Done", "Failed"]}},
    "creates": ["/Pod"],
}
_CONFIGURATION: Object = {
    "surge": "count",
    "suspended": "reserve",
    "strictModels": True,
    "keepStatements": 10,
    "gpuModels": {"A100": {"aliases": ["NVIDIA-A100-SXM4-80GB"], "memoryMiB": 81920}},
    "gpuResources": ["example.com/npu"],
    "deviceClassMappings": {"a100.example.com": {"resource": "nvidia.com/gpu", "model": "A100"}},
    "hami": {"enabled": True, "deviceSplitCount": 10, "vendors": ["nvidia"]},
    "rights": {"use": True, "grant": True},
    "exemptNamespaces": ["monitoring"],
    "managedNamespaces": {
        "matchLabels": {"a": "b"},
        "matchExpressions": [{"key": "quota.example.com/no", "operator": "In", "values": ["a"]}],
    },
    "controllers": ["system:serviceaccount:argo-rollouts:*"],
    "countsAs": [{"annotation": "gpu-fraction", "times": "devices", "card": "nvidia.com/gpu", "unit": "MiB"}],
    "adapters": [_ADAPTER],
}
_ADDRESSES = (
    *("http://a..b", f"https://{'a' * 300}", "http://[::1", "http://127.0.0.1:99999", "socks5://127.0.0.1:9", "x:9"),
    *("https://ü.example", "https://a b", "https://a/%2e", "https://u:p@127.0.0.1:9", "http://127.0.0.1:9/?a#b", "..."),
)
#: The port 9 is for nobody: no connection is made.
_KUBECONFIG: Object = {
    "current-context": "one",
    "contexts": [
        {"name": "one", "context": {"cluster": "c", "user": "u", "namespace": "n"}},
        {"name": "two", "context": {"cluster": "c", "user": "plugin"}},
    ],
    "clusters": [
        {
            "name": "c",
            "cluster": {
                "server": "https://127.0.0.1:9",
                "certificate-authority-data": "",
                "tls-server-name": "kubernetes",
                "proxy-url": "http://127.0.0.1:9",
                "insecure-skip-tls-verify": True,
            },
        }
    ],
    "users": [
        {
            "name": "u",
            "user": {
                "token": "",
                "tokenFile": "/dev/null",
                "username": "a",
                "password": "b",
                "client-certificate-data": "",
                "client-key": "",
            },
        },
        {"name": "plugin", "user": {"exec": {"apiVersion": "v1", "command": "/bin/false", "args": ["x"], "env": []}}},
    ],
}
