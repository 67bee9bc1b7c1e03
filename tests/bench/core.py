"""What deciding and counting cost without a network, in CPU time: others on the machine do not count."""

from __future__ import annotations

import math
import time
import tracemalloc
from typing import Any

import orjson

from bizrq.api import review
from bizrq.process import quiet_collector
from bizrq.quota.account import Account
from bizrq.quota.admission import decide
from bizrq.quota.verdict import Granted
from bizrq.settings import load
from bizrq.units.quantity import NANO
from bizrq.workloads.demand import counting
from bizrq.workloads.lookup import EmptyLookup
from controller.usage.below import gather
from controller.usage.excess import ExcessUsage
from controller.usage.pod_charge import PodCharges
from tests.bench import hours
from tests.bench.measure import Spread
from tests.support.catalog import CATALOG
from webhooks.charging.charges import charge_of

ROUNDS = 5
HARD: dict[str, int] = dict.fromkeys(("limits.cpu", "limits.memory", "pods", "count/deployments.apps"), 10**24)


def decisions() -> list[str]:
    """B9: from the bytes of a review to the bytes of the answer and of the reservation, 50 in one write."""
    settings = load(None)
    adapter = settings.registry.by_kind("apps", "Deployment")
    assert adapter is not None
    bodies = [orjson.dumps(_review(number)) for number in range(5000)]
    rates = []
    for _ in range(ROUNDS):
        began = time.process_time()
        for start in range(0, len(bodies), 50):
            account = Account("hot", HARD, dict.fromkeys(HARD, 0), catalog=CATALOG)
            for body in bodies[start : start + 50]:
                request = review.decode(body)
                assert request.object is not None
                demand = counting.demand(request.object, settings.registry, EmptyLookup(), settings.counting)
                verdict = decide(account, charge_of(adapter, request, request.object, demand, None, None), 1)
                assert isinstance(verdict, Granted)
                assert verdict.reservation is not None
                account.reserve(verdict.reservation)
                review.allowed(request.uid)
            _ = [str(entry) for entry in account.reservations]
        rates.append(len(bodies) / (time.process_time() - began))
    figure = f"{Spread([rate / 1000 for rate in rates])} thousand a second"
    return [f"| B9 | decisions without the network, one core (an absolute figure) | {figure} |"]


def _review(number: int) -> dict[str, Any]:
    resources = {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m", "memory": "512Mi"}}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": f"r{number}",
            "kind": {"group": "apps", "version": "v1", "kind": "Deployment"},
            "resource": {"group": "apps", "version": "v1", "resource": "deployments"},
            "name": f"d{number}",
            "namespace": "default",
            "operation": "CREATE",
            "object": {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {
                    "name": f"d{number}",
                    "namespace": "default",
                    "uid": f"00000000-0000-0000-0000-{number:012d}",
                    "labels": {"biz.group.resource.quota": "hot"},
                },
                "spec": {
                    "replicas": 3,
                    "selector": {"matchLabels": {"app": "x"}},
                    "template": {
                        "metadata": {"labels": {"app": "x"}},
                        "spec": {"containers": [{"name": "c", "image": "x", "resources": resources}]},
                    },
                },
            },
        },
    }


def below() -> list[str]:
    """B12: the comparison of a workload with all its pods, which a pod more or less asks for."""
    rows, each = [], {}
    settings = load(None)
    adapter = settings.registry.by_kind("kubeflow.org", "TFJob")
    assert adapter is not None
    for count in (10_000, 100_000):
        cluster = hours.cluster_of(count)
        [job] = cluster.informers.workloads["tfjobs.kubeflow.org"].store.values()
        excess = ExcessUsage(cluster, settings.counting)
        pods = PodCharges(cluster, excess, settings.counting, lambda: hours.NOW)
        demand, lookup = counting.Demand({"pods": (count - 1) * NANO}), cluster.resolver.cached_lookup
        quiet_collector()
        seconds = []
        for _ in range(ROUNDS):
            began = time.process_time()
            owners = gather(cluster, adapter, job)
            between = excess.of(adapter, job, owners, demand.resources, lookup)
            found = pods.of(adapter, job, owners, demand, {}, between.resources, lookup)
            seconds.append(time.process_time() - began)
            assert found.weighed.beyond["pods"]
        each[count] = min(seconds) / count * 1e6
        rows.append(f"{count}: {each[count]:.1f} µs a pod")
        del cluster
    exponent = 1 + math.log(each[100_000] / each[10_000]) / math.log(10)
    return [f"| B12 | a workload compared with its pods | {', '.join(rows)}; exponent {exponent:.2f} |"]


def memory() -> list[str]:
    """B5: what 100,000 pods take in the controller's caches."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    kept = hours.cluster_of(100_000)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del kept
    return [f"| B5 | caches of 100,000 pods, as Python counts its memory | {(after - before) / 1e6:.0f} MB |"]
