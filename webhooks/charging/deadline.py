"""How long what an answer needs may still take.

This file alone turns the moment by which a review has to be answered into the timeout of one request.
"""

from __future__ import annotations

import time


def seconds_left(deadline: float) -> float:
    """Seconds until a moment of `time.monotonic`; a tenth at least, so that what begins is not cut off at once."""
    return max(0.1, deadline - time.monotonic())
