"""The controller's Prometheus metrics."""

from prometheus_client import Counter, Gauge, Histogram

RECONCILES = Counter("bizrq_reconcile_total", "Reconciliations of a group", ["result"])
RECONCILE_SECONDS = Histogram("bizrq_reconcile_duration_seconds", "Time of one reconciliation of a group")
STATUS_WRITES = Counter("bizrq_status_writes_total", "Status writes by the controller")
DRIFT = Counter("bizrq_drift_total", "Recounts that found more stored than was admitted", ["group"])
CACHE_CORRECTED = Counter(
    "bizrq_usage_cache_corrected_total", "Cached usage that a full check had to correct", ["group"]
)
MISMATCHES = Gauge("bizrq_device_mismatches", "Workloads that use other devices than they declare", ["group"])
QUEUE_DEPTH = Gauge("bizrq_workqueue_depth", "Groups that wait for reconciliation")
LEADER = Gauge("bizrq_leader", "1 while this process holds the Lease and reconciles groups")
CASH_USED = Gauge("bizrq_cash_used_ratio", "Used share of a card-hour budget", ["group", "resource"])
CASH_EXHAUSTION = Gauge(
    "bizrq_cash_exhaustion_timestamp_seconds",
    "When a card-hour budget is exhausted at the current rate, in seconds since 1970; +Inf: not before the next grant",
    ["group", "resource"],
)
