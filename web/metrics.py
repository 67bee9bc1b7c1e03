"""What is measured of pages and streams. No label names a group or a user."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

REQUESTS = Counter("bizrq_web_requests_total", "Answered requests for pages and files", ["page", "code"])
SECONDS = Histogram(
    "bizrq_web_request_seconds",
    "Time to answer a request for a page",
    ["page"],
    buckets=(0.005, 0.025, 0.1, 0.3, 1, 3, 10, 30),
)
STREAMS = Gauge("bizrq_web_streams", "Pages that follow changes now")
USERS = Gauge("bizrq_web_users", "Users whose credentials are in memory now")
