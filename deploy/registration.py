"""Print the ValidatingWebhookConfiguration, for clusters where `bizrq up` does not make it.

`python deploy/registration.py --url https://webhooks:8443` wrote deploy/registration.yaml, which docker-compose.yml
gives to k3s. Without --url the webhooks are reached by the Service bizrq-webhooks. The caBundle is left out:
bizrq-certs writes it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from bizrq.settings import load
from webhooks import registration

HEAD = "# Written by deploy/registration.py, which says how. bizrq-certs adds the caBundle.\n"


def document(url: str | None, namespace: str, config: Path | None) -> str:
    """The registration as YAML; raises ConfigurationError."""

    def client_config(path: str) -> dict[str, Any]:
        if url is not None:
            return {"url": url.rstrip("/") + path}
        return {"service": {"name": "bizrq-webhooks", "namespace": namespace, "port": 8443, "path": path}}

    found = registration.configuration(load(config).registry, client_config, namespace=namespace)
    return HEAD + yaml.dump(found, Dumper=_Plain, sort_keys=False, width=110)


class _Plain(yaml.SafeDumper):
    """Without anchors: what is the same twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="where the API server reaches the webhooks; without it the Service")
    parser.add_argument("--namespace", default="bizrq-system", help="where bizrq itself runs")
    parser.add_argument("--config", type=Path, help="the configuration of the processes: its adapters are rules too")
    arguments = parser.parse_args()
    sys.stdout.write(document(arguments.url, arguments.namespace, arguments.config))
