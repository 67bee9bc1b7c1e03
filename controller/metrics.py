"""What the controller tells Prometheus."""

from prometheus_client import Counter, Gauge, Histogram

RECONCILES = Counter("bizrq_reconcile_total", "Looks at a group", ["result"])
RECONCILE_SECONDS = Histogram("bizrq_reconcile_duration_seconds", "Time of one look at a group")
STATUS_WRITES = Counter("bizrq_status_writes_total", "Status writes of the controller")
DRIFT = Counter("bizrq_drift_total", "Recounts that found more stored than was admitted", ["group"])
CACHE_CORRECTED = Counter(
    "bizrq_usage_cache_corrected_total", "Kept sums that were not what a full check counted", ["group"]
)
MISMATCHES = Gauge("bizrq_device_mismatches", "Workloads that use other devices than they declare", ["group"])
QUEUE_DEPTH = Gauge("bizrq_workqueue_depth", "Groups that wait for a look")
LEADER = Gauge("bizrq_leader", "1 while this process keeps the status of groups")
CASH_USED = Gauge("bizrq_cash_used_ratio", "What is used of a budget of hours", ["group", "resource"])
CASH_EXHAUSTION = Gauge(
    "bizrq_cash_exhaustion_timestamp_seconds",
    "When a budget of hours is used up at the present burn, in seconds since 1970; +Inf: not before the next grant",
    ["group", "resource"],
)
