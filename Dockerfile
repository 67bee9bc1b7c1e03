# All of bizrq's commands in one image; docker-compose.yml shows the three that run. Without the sandbox.
FROM python:3.11-slim AS build
RUN pip install --no-cache-dir --disable-pip-version-check uv==0.13.8
WORKDIR /bizrq
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
# The dependencies first: they change less often than the code. Wheels only, so that no compiler is needed.
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --frozen --no-dev --no-install-project --no-build
COPY bizrq bizrq
COPY webhooks webhooks
COPY controller controller
COPY certs certs
COPY crds crds
RUN uv sync --frozen --no-dev --no-editable

FROM python:3.11-slim
RUN pip uninstall --yes --quiet --root-user-action=ignore setuptools wheel pip \
    && install --directory --owner=10001 --group=10001 /var/lib/bizrq /var/lib/bizrq/certs
COPY --from=build /bizrq/.venv /bizrq/.venv
ENV PATH=/bizrq/.venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can tell that it is not root (runAsNonRoot).
USER 10001:10001
WORKDIR /var/lib/bizrq
CMD ["bizrq", "--help"]
