"""A webhook that allows all: what being asked costs, whoever decides. `python -m tests.bench.allow CERTS PORT`."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import uvloop
from aiohttp import web

from certs.store import ServingCertificate


async def allow(http: web.Request) -> web.Response:
    uid = orjson.loads(await http.read())["request"]["uid"]
    answer = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": uid, "allowed": True},
    }
    return web.Response(body=orjson.dumps(answer), content_type="application/json")


async def main(folder: Path, port: int) -> web.Application:
    app = web.Application(client_max_size=8 << 20)
    app.router.add_post("/{path:.*}", allow)
    return app


if __name__ == "__main__":
    uvloop.install()
    certificate = ServingCertificate(Path(sys.argv[1]))
    certificate.load()
    web.run_app(
        main(Path(sys.argv[1]), int(sys.argv[2])),
        host="127.0.0.1",
        port=int(sys.argv[2]),
        ssl_context=certificate.context,
        access_log=None,
        print=None,
    )
