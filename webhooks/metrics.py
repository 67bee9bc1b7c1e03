"""The webhooks' Prometheus metrics."""

from contextlib import AbstractContextManager

from prometheus_client import Counter, Histogram

from bizrq.metrics import counted, counted_write

#: The bounds in seconds of what an API server waits for.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

REVIEWS = Counter("bizrq_admission_reviews_total", "Reviews answered", ["webhook", "verdict"])
SECONDS = Histogram(
    "bizrq_admission_duration_seconds", "Time from a review's arrival to its answer", ["webhook"], buckets=_SECONDS
)
WAIT = Histogram(
    "bizrq_admission_wait_duration_seconds",
    "Time that a charge waits for its group: from its arrival there to its verdict, its write included",
    buckets=_SECONDS,
)
BATCH_SIZE = Histogram(
    "bizrq_admission_batch_size",
    "Charges that are decided together, each time that they are decided for good",
    buckets=(1, 2, 5, 10, 20, 50, 100, 200, 500),
)
NOTES = Counter("bizrq_allowance_notes_total", "Creates admitted by an allowance")
RECALLS = Counter("bizrq_allowance_recalls_total", "Allowances that were taken back, the process's own at its end too")
JOURNAL_WRITES = Counter("bizrq_journal_writes_total", "Writes of the journal of this process's allowances", ["result"])


class Measured:
    """Measures what a Reserver and a Notebook decide and write."""

    def waited(self, seconds: float) -> None:
        WAIT.observe(seconds)

    def decided(self, charges: int) -> None:
        BATCH_SIZE.observe(charges)

    def writing(self) -> AbstractContextManager[None]:
        return counted_write()

    def recalled(self, allowances: int) -> None:
        RECALLS.inc(allowances)

    def noted(self, creates: int) -> None:
        NOTES.inc(creates)

    def writing_journal(self) -> AbstractContextManager[None]:
        return counted(JOURNAL_WRITES)
