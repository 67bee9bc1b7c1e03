# All of bizrq's commands in one image; docker-compose.yml shows the three that run. Without the sandbox.
# The base image has to be named with its digest: `make images` asks the registry for it and writes .env.
ARG PYTHON_IMAGE
FROM ${PYTHON_IMAGE} AS build
ARG PYTHON_IMAGE
RUN echo "$PYTHON_IMAGE" | grep -Eq '@sha256:[0-9a-f]{64}$' || { echo "PYTHON_IMAGE has no digest: run make images" >&2; exit 1; }
WORKDIR /bizrq
# The installer, and then the dependencies and the build backend by the lock: each file by its hash.
# Wheels only, so that nothing but bizrq is built.
COPY deploy/uv.txt deploy/uv.txt
RUN pip install --no-cache-dir --disable-pip-version-check --require-hashes --only-binary :all: -r deploy/uv.txt
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
# The dependencies first: they change less often than the code.
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --frozen --no-dev --group build --no-install-project --no-build
COPY bizrq bizrq
COPY webhooks webhooks
COPY controller controller
COPY web web
COPY certs certs
COPY crds crds
RUN uv sync --frozen --no-dev --group build --no-editable --no-build-isolation \
    && uv sync --frozen --no-dev --no-editable --no-build-isolation

FROM ${PYTHON_IMAGE}
RUN pip uninstall --yes --quiet --root-user-action=ignore setuptools wheel pip \
    && install --directory --owner=10001 --group=10001 /var/lib/bizrq /var/lib/bizrq/certs
COPY --from=build /bizrq/.venv /bizrq/.venv
ENV PATH=/bizrq/.venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can tell that it is not root (runAsNonRoot).
USER 10001:10001
WORKDIR /var/lib/bizrq
CMD ["bizrq", "--help"]
