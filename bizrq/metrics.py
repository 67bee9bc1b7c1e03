"""Metrics that several processes have: requests to the API server, watches, status writes, certificates.

This file alone names them. Where client-go has a metric of the same meaning, the name and the labels are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from urllib.parse import urlsplit

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from bizrq.kube.client import ApiError, Conflict, KubeClient, Unreachable
from bizrq.kube.informer import Informer
from bizrq.store.processes import OldestWatch

REQUESTS = Counter(
    "rest_client_requests_total",
    "Number of HTTP requests to the API server; the code is <error> where no answer came",
    ["code", "method", "host"],
)
REQUEST_SECONDS = Histogram(
    "rest_client_request_duration_seconds",
    "Time of a request to the API server with its retries, without watches",
    ["verb", "host"],
    buckets=(0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60),
)
STATUS_WRITES = Counter("bizrq_status_writes_total", "Writes of a group's status", ["result"])
CERTIFICATE_EXPIRES = Gauge(
    "bizrq_certificate_expiration_timestamp_seconds", "Expiration of a certificate as Unix time", ["certificate"]
)
#: The code of a request without an answer, as client-go has it.
_NO_ANSWER = "<error>"


class _Requests:
    """Observes the requests of one client."""

    def __init__(self, host: str) -> None:
        self._host = host

    def answered(self, method: str, status: int | None) -> None:
        REQUESTS.labels(_NO_ANSWER if status is None else str(status), method, self._host).inc()

    def ended(self, method: str, seconds: float) -> None:
        REQUEST_SECONDS.labels(method, self._host).observe(seconds)


def observed(client: KubeClient) -> KubeClient:
    """Measure the requests of a client, and return it."""
    client.observer = _Requests(urlsplit(client.server).netloc)
    return client


def counted_write() -> AbstractContextManager[None]:
    """Count one write of a group's status by its result: `done`, `conflict` or `failed`."""
    return counted(STATUS_WRITES)


@contextmanager
def counted(writes: Counter) -> Iterator[None]:
    """Count one write by its result: `done`, `conflict` or `failed`."""
    try:
        yield
    except (ApiError, Unreachable) as error:
        writes.labels("conflict" if isinstance(error, Conflict) else "failed").inc()
        raise
    writes.labels("done").inc()


class WatchAges(Collector):
    """The seconds since the API server last sent anything about each kind that is installed."""

    def __init__(self, informers: Callable[[], Iterable[Informer]]) -> None:
        self._informers = informers

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily(
            "bizrq_watch_age_seconds",
            "Seconds since the API server last sent a list, an event or a bookmark of a kind",
            labels=["resource"],
        )
        for key, age in sorted(self._ages().items()):
            family.add_metric([key], age)
        yield family

    def oldest(self) -> OldestWatch | None:
        """Return the kind of which nothing was sent for longest, None where nothing is watched."""
        ages = self._ages()
        return max((OldestWatch(*each) for each in ages.items()), key=lambda each: each.age, default=None)

    def _ages(self) -> dict[str, float]:
        ages: dict[str, float] = {}
        for informer in self._informers():
            if informer.installed is not False:
                key = informer.resource.key
                ages[key] = max(ages.get(key, 0.0), informer.age)
        return ages
