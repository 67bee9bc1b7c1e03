"""`bizrq-controller` on a machine whose clock is wrong: `python -m tests.support.skewed SECONDS [OPTION…]`.

All else is the program's own, but that its metrics are for this machine only.
"""

from __future__ import annotations

import sys
import time

from bizrq import process
from controller import main


def started() -> None:
    skew = int(sys.argv.pop(1)) * 1_000_000_000
    true, serve = time.time_ns, process.serve_metrics
    time.time_ns = lambda: true() + skew
    time.time = lambda: time.time_ns() / 1e9
    process.serve_metrics = lambda _, *rest: serve("127.0.0.1", *rest)
    main.run()


if __name__ == "__main__":
    started()
