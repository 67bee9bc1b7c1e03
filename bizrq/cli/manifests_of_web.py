"""The manifests of the web UI, which `bizrq install --web` applies after all others.

This file alone decides how `bizrq-web` runs in a cluster. Its account has no rights and its pods have no token: each
request to the API server is the user's own (docs/web.md). Nothing here talks to a cluster.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from cryptography.fernet import Fernet

from bizrq.cli.manifests_of_bizrq import WEB_KEYS, InstallPlan, deployment, grace_of, labelled, metadata_of, selector
from bizrq.store.processes import WEB

Object = dict[str, Any]

PORT = 8444
_SEALS, _CERTIFICATE, _PROVIDER = "/etc/bizrq-web/keys", "/etc/bizrq-web/certificate", "/etc/bizrq-web/provider"
#: Each namespace has a ConfigMap with the CA of the API server; pods without a token have it from there.
_API_CA, _ROOT_CA = "/etc/bizrq-web/api-server", "kube-root-ca.crt"


@dataclass(frozen=True, slots=True)
class WebPlan:
    """How people reach the web UI, and sign in.

    `url` is the address of the pages. `tls_secret` has the certificate that the pods serve, "" where something in front
    of them does. `issuer` and `client` name the provider to sign in with, "" for none; `client_secret` is the Secret
    with the key `client-secret`, "" for a public client.
    """

    url: str
    tls_secret: str = ""
    issuer: str = ""
    client: str = ""
    client_secret: str = ""


def web_objects(plan: InstallPlan, web: WebPlan) -> list[Object]:
    """Return the objects of the web UI in the order to apply them, without the Secret of its keys."""
    found = [_account(plan), _service(plan), _disruption_budget(plan), _deployment(plan, web)]
    return [labelled(obj) for obj in found]


def keys(namespace: str) -> Object:
    """Return the Secret with two new keys, for a cluster that has none."""
    # A key is text, and a Secret has each value as base64 besides.
    made = {name: base64.b64encode(Fernet.generate_key()).decode() for name in ("current", "other")}
    metadata = {"name": WEB_KEYS, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": made}


def _account(plan: InstallPlan) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata_of(WEB, plan),
        "automountServiceAccountToken": False,
    }


def _service(plan: InstallPlan) -> Object:
    port = {"name": "web", "port": PORT, "targetPort": "web", "protocol": "TCP"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata_of(WEB, plan),
        "spec": {"selector": selector(WEB), "ports": [port]},
    }


def _disruption_budget(plan: InstallPlan) -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata_of(WEB, plan),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector(WEB)}},
    }


def _deployment(plan: InstallPlan, web: WebPlan) -> Object:
    arguments = ["--public-url", web.url, "--listen", f"[::]:{PORT}", "--keys", _SEALS]
    arguments += ["--api-ca", f"{_API_CA}/ca.crt", "--drain-delay", str(plan.drain_delay)]
    mounts: dict[str, Object] = {
        _SEALS: {"name": "keys", "secret": {"secretName": WEB_KEYS}},
        _API_CA: {"name": "api-server", "configMap": {"name": _ROOT_CA}},
    }
    if web.tls_secret:
        arguments += ["--cert-dir", _CERTIFICATE]
        mounts[_CERTIFICATE] = {"name": "certificate", "secret": {"secretName": web.tls_secret}}
        # The root file system is read-only, and OpenSSL reads keys only from files.
        mounts["/tmp"] = {"name": "tmp", "emptyDir": {"medium": "Memory"}}  # noqa: S108 a volume of the pod's own
    if web.issuer:
        arguments += ["--oidc-issuer", web.issuer, "--oidc-client-id", web.client]
    if web.client_secret:
        arguments += ["--oidc-client-secret", f"{_PROVIDER}/client-secret"]
        mounts[_PROVIDER] = {"name": "provider", "secret": {"secretName": web.client_secret}}
    made = deployment(WEB, plan, plan.replicas, arguments, ports={"web": PORT}, mounts=mounts, grace=grace_of(plan))
    made["spec"]["template"]["spec"]["automountServiceAccountToken"] = False
    return made
