"""The controller's Prometheus metrics.

Those of the workqueue and of the lead have the names and the meaning of client-go's. Amounts are in base units: cores,
bytes, cards, hours.
"""

from prometheus_client import Counter, Gauge, Histogram

from bizrq.exposition import GroupCounter, GroupFamily

RECONCILES = Counter("bizrq_reconcile_total", "Reconciliations of a group", ["result"])
LEADER = Gauge(
    "leader_election_master_status", "1 while this process holds the Lease of that name, 0 while it waits", ["name"]
)
PAUSED = Gauge("bizrq_paused", "1 while bizrq is paused, as the leader sees it")
FOLDED = Counter("bizrq_allowance_notes_folded_total", "Notes that counts moved from journals to statuses")
REGISTRATION_WRITES = Counter("bizrq_registration_writes_total", "Writes of the webhook registration", ["result"])

#: The bounds in seconds of what waits and works.
_SECONDS = (0.001, 0.01, 0.1, 1, 10, 100, 1000)
QUEUE_ADDS = Counter("workqueue_adds_total", "Groups that came to wait for a reconciliation", ["name"])
QUEUE_RETRIES = Counter("workqueue_retries_total", "Reconciliations that failed and are tried again", ["name"])
QUEUE_SECONDS = Histogram(
    "workqueue_queue_duration_seconds", "Time that a group is due until it is reconciled", ["name"], buckets=_SECONDS
)
WORK_SECONDS = Histogram(
    "workqueue_work_duration_seconds", "Time of one reconciliation of a group", ["name"], buckets=_SECONDS
)

HARD = GroupFamily("bizrq_group_hard", "The ceiling of a group, in base units", by="resource")
USED = GroupFamily("bizrq_group_used", "What a group uses with what its children hold, in base units", by="resource")
SELF_USED = GroupFamily("bizrq_group_self_used", "What a group's own workloads use, in base units", by="resource")
RESERVED = GroupFamily(
    "bizrq_group_reserved", "What is reserved in a group and not yet counted as used, in base units", by="resource"
)
AHEAD = GroupFamily("bizrq_group_ahead", "What webhook processes hold ahead of a group, in base units", by="resource")
ALLOWANCES = GroupFamily("bizrq_group_allowances", "Webhook processes that hold an allowance of a group")
CASH_USED = GroupFamily("bizrq_cash_used_ratio", "Used share of a card-hour budget", by="resource")
CASH_EXHAUSTION = GroupFamily(
    "bizrq_cash_exhaustion_timestamp_seconds",
    "When a card-hour budget is exhausted at the current rate, in seconds since 1970; +Inf: not before the next grant",
    by="resource",
)
MISMATCHES = GroupFamily("bizrq_device_mismatches", "Workloads that use other devices than they declare")
DRIFT = GroupCounter("bizrq_drift_total", "Recounts that found more stored than was admitted")
CACHE_CORRECTED = GroupCounter("bizrq_usage_cache_corrected_total", "Cached usage that a full check had to correct")

#: Those that say what is counted now; the others count on while a group cannot be read.
COUNTED = (HARD, USED, SELF_USED, RESERVED, AHEAD, ALLOWANCES, CASH_USED, CASH_EXHAUSTION, MISMATCHES)
#: All that belong to groups.
OF_GROUPS = (*COUNTED, DRIFT, CACHE_CORRECTED)
