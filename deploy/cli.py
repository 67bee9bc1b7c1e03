"""Print docs/cli.md, the help of every command of bizrq.

`python deploy/cli.py > docs/cli.md` writes the page; a test compares them.
"""

from __future__ import annotations

import sys

import typer
from typer.testing import CliRunner

from bizrq.cli.main import app

HEAD = """\
# The command line

`python deploy/cli.py` generates this page from the program. With `kubectl-bizrq` on `PATH`, `kubectl bizrq tree`
is `bizrq tree`, and so on. Results go to stdout, everything else to stderr. Only terminals get colours and bars;
`NO_COLOR` turns the colours off, and `LC_ALL=C` asks for ASCII. A table that is longer than the terminal is shown in
`$PAGER`, by default `less`; an
empty `PAGER` turns that off. A row that is too long gets lines of its own. Exit codes:

| code | meaning |
|---|---|
| 0 | done, or the answer is yes |
| 1 | the answer is no |
| 2 | bad usage or input |
| 3 | the cluster is unreachable or refused the request |
| 4 | unknown: the answer depends on something that you may not read; stderr names it |

Verbs that use a cluster take `--context` and `--kubeconfig`, by default `$KUBECONFIG` or `~/.kube/config`. They also
accept kubectl's global flags `--cluster`, `--user`, `--server`, `--token`, `--insecure-skip-tls-verify`, `--as`,
`--as-group` and `--request-timeout`, which their help does not list; and `-n`, although groups have no namespace.

## JSON, YAML and CSV

Every amount is a whole number, and `unit` says of what: `millicores`, `bytes`, `count`, or for budgets of hours
`seconds` of a device, `core-seconds` or `MiB-seconds`. What is used or needed is rounded up, what is left or granted
down. `null` is not known yet. [Billing](billing.md#for-scripts) has the keys of bills.

| output | keys |
|---|---|
| `tree`: a list of groups | `name`, `parent` (`""` for a root), `children`, `conditions`, `counted` (when the group was recounted last), and `resources`: by name `{unit, hard, used, selfUsed, granted, reserved, left, percentOfHard, ahead}` |
| `report`: a list, and CSV | `group`, `parent`, `resource`, and the keys of a resource of `tree` |
| `describe`: a list of groups | the keys of `tree`, and `workloads`, `leftovers`, `reservations`, `ahead`, `events` |
| `fit`: a list of manifests | `kind`, `namespace`, `name`, `group`, `fits`, `reason`, `message`, `resources`, `violations`, `maxReplicas`, `couldHelp`, `warnings`, `unread`, `later` |
| `explain -f`: a list | the keys of `fit`, and `because` |
| `explain KIND/NAME` | `kind`, `namespace`, `name`, `group`, `reason`, `chargedFor`, `resources`, `error`, `hasEnded`, `ending`, `remarks`, `oneMore` (as from `fit`, or null), `later` |
| `explain GROUP` | `name`, `path`, `conditions`, and `resources`: the keys of `tree`, `reason`, `workloads`, `children` |
| `usage`: a list | `apiVersion`, `kind`, `namespace`, `name`, `group`, and `usage` by name `{unit, amount}`, or `error`; and `warnings` |
| `status` | `state` (`healthy`, `unhealthy` or `unknown`), `problems` and `notices` (lists of `{reason, message}`), `unknown`, `unread`, `versions` (by program), `webhooks` `{registered, answer, enforcedByGroups}`, `leader` `{holder, renewed}`, `oldestWatch` `{process, resource, age}` in seconds, `counts` `{groups, newest, oldest}`, `groups` `{notReady, overQuota, hoursExhausted}` |
| `get`, CSV alone | `name`, `parent`, `ready`, `over`, `scarcest`, `unit`, `taken`, `hard`, `percentOfHard`, `reservations`, `counted`, `created`, `contact`, `ahead` |

In `fit`, `reason` is a code of [refusals](refusals.md), and null if the manifest fits. `resources` has by name `{unit,
hard, taken, left, asks, had}`. A violation is `{resource, unit, requested, used, hard, left, short}`. `couldHelp` lists
groups with enough left, at most 20: `{group, relation, left}`, where `relation` is `parent` or `sibling`. `unread`
lists what the answer depends on and you may not read, or nobody here knows. Then `fits` is null, and `reason` and
`message` are those of the answer without it, null where that says nothing. `later` lists what the object will make,
such as a Job, and its largest state (`largest` is true), as they would be decided now: `{what, kind, name, group,
largest, fits, reason, message, resources, violations}`. An object whose Jobs or Deployments do not fit does not fit;
where only its largest state does not, it fits.

In `explain KIND/NAME`, `reason` is `Charged`, `PaidByOwner`, `PaidByFormerOwner`, `KindNotCharged`, `NoGroup`,
`NoSuchGroup` or `Unreadable`; a resource has `{unit, hard, taken, left, costs}`. In `explain GROUP`, the `reason` of a
resource is `Left`, `NothingLeft`, `NoneAllowed`, `OverQuota` or `NotCounted`. New keys and codes may come.

## Completion

`bizrq completion bash`, `zsh` or `fish` prints the script of a shell. For `kubectl bizrq`, kubectl 1.26 and newer runs
`kubectl_complete-bizrq`, which is installed with bizrq.
"""  # noqa: E501 rows of tables


def page() -> str:
    """Return the page as Markdown."""
    plain = typer.Typer(rich_markup_mode=None, add_completion=False, context_settings=app.info.context_settings)
    for command in app.registered_commands:
        plain.command(command.name)(command.callback)  # type: ignore[type-var]
    found = [HEAD]
    for command in app.registered_commands:
        answer = CliRunner().invoke(plain, [command.name or "", "--help"], prog_name="bizrq", terminal_width=100)
        found.append(f"## {command.name}\n\n```text\n{answer.output.strip()}\n```\n")
    return "\n".join(found)


if __name__ == "__main__":
    sys.stdout.write(page())
