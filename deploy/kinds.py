"""Print the table of docs/kinds.md from the declarations of kinds.

Replace the table in the page with the output; a test compares them.
"""

from __future__ import annotations

import sys

from bizrq.builtin import builtin_registry
from bizrq.workloads.describe import table

if __name__ == "__main__":
    sys.stdout.write(table(builtin_registry()))
