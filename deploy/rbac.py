"""Print the namespace, the service accounts and their rights.

`python deploy/rbac.py` wrote deploy/rbac.yaml, which docker-compose.yml gives to k3s. With --config it lists the kinds
that `adapters` adds there, too.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

from bizrq.cli import rbac
from bizrq.settings import load

HEAD = """\
# Written by deploy/rbac.py, which says how. What the three processes may do, each by its own service account, and no
# more. docs/operations.md explains the lines.
"""


def document(namespace: str, config: Path | None) -> str:
    """The documents as YAML; raises ConfigurationError."""
    parts = [_document(manifest) for manifest in rbac.manifests(load(config).registry, namespace)]
    return HEAD + "---\n".join(parts)


def _document(manifest: rbac.Manifest) -> str:
    comment = "".join(f"# {line}\n" for line in manifest.why.splitlines())
    return comment + yaml.dump(manifest.document, Dumper=_Compact, sort_keys=False, width=110)


class _Compact(yaml.SafeDumper):
    """Lists of plain texts stay in one line; what is the same twice is written twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _list(dumper: yaml.SafeDumper, value: list[object]) -> yaml.SequenceNode:
    return dumper.represent_sequence(
        "tag:yaml.org,2002:seq", value, flow_style=all(isinstance(each, str) for each in value)
    )


_Compact.add_representer(list, _list)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namespace", default="bizrq-system", help="where bizrq itself runs")
    parser.add_argument("--config", type=Path, help="the configuration of the processes: its adapters need rights too")
    arguments = parser.parse_args()
    sys.stdout.write(document(arguments.namespace, arguments.config))
