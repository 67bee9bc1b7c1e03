"""Flags that the processes and `bizrq install` share, so that both have the same values, bounds and defaults."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


LogFormatOption = Annotated[LogFormat, typer.Option("--log-format", help="Form of a line of the log.")]
LogLevelOption = Annotated[LogLevel, typer.Option("--log-level", help="Log nothing that is less severe.")]
MetricsAnonymous = Annotated[
    bool, typer.Option("--metrics-anonymous", help="Let everybody read /metrics, without a token.")
]
MetricsPort = Annotated[
    int, typer.Option("--metrics-port", min=0, max=65535, help="Port of /metrics (HTTP); 0 serves none.")
]
#: Seconds to serve on before a port closes: by then every node has learned that the pod is not ready.
DRAIN_DELAY, LONGEST_DRAIN = 10, 600
DrainDelay = Annotated[
    int,
    typer.Option(
        "--drain-delay",
        min=0,
        max=LONGEST_DRAIN,
        help="Seconds that webhooks serve on after SIGTERM, until no new reviews come.",
    ),
]
