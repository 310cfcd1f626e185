# The images of docker-compose.yml: `docker build --target worker .`, likewise worker-gpu, web
# and serve.  Each has Python, a virtual environment that a stage before has built, and its code.

FROM python:3.12.12-slim-bookworm AS python
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# The packages are installed before our code is copied: they change seldom, and torch is large.
FROM python AS build
WORKDIR /build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/build/constraints.txt PIP_BUILD_CONSTRAINT=/build/constraints.txt
COPY pyproject.toml constraints.txt README.md LICENSE ./
# Dependency groups need a newer pip than the image's.
RUN pip install 'pip>=25.1' && python -m venv --without-pip /venv
COPY celery_batch/__init__.py ./celery_batch/

FROM build AS build-web
RUN pip --python /venv/bin/python install --group web --group flower .
COPY celery_batch ./celery_batch
RUN pip --python /venv/bin/python install --no-deps --force-reinstall .

FROM build AS build-serve
RUN pip --python /venv/bin/python install --group onnx .
COPY celery_batch ./celery_batch
RUN pip --python /venv/bin/python install --no-deps --force-reinstall .

# A torch without CUDA is on PyTorch's own index; PyPI has the one with CUDA, ten times as large.
# The task of a Hugging Face model needs more: `--build-arg WORKER_GROUP=transformers`.
FROM build AS build-worker
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG WORKER_GROUP=worker
RUN pip --python /venv/bin/python install --extra-index-url "${TORCH_INDEX}" --group "${WORKER_GROUP}" .
COPY celery_batch ./celery_batch
RUN pip --python /venv/bin/python install --no-deps --force-reinstall .

# CUDA comes with torch; the driver is the host's, through NVIDIA's container toolkit.
FROM build AS build-worker-gpu
ARG WORKER_GROUP=worker
RUN pip --python /venv/bin/python install --group "${WORKER_GROUP}" .
COPY celery_batch ./celery_batch
RUN pip --python /venv/bin/python install --no-deps --force-reinstall .

FROM python AS runtime
RUN useradd --system --uid 10001 --user-group --no-create-home celery
ENV PATH=/venv/bin:$PATH HOME=/tmp
WORKDIR /srv
USER 10001

FROM redis:7.4.11-bookworm AS redis

# A handle behind `celery batch serve` with its Redis, here the ONNX examples: no torch.
FROM runtime AS serve
COPY --from=redis /usr/local/bin/redis-server /usr/local/bin/
COPY --from=build-serve /venv /venv
COPY examples ./examples
COPY deploy/compose/imagenet_resnet18.yaml ./deploy/compose/imagenet_resnet18.yaml
EXPOSE 9876
HEALTHCHECK --interval=10s --timeout=10s --start-period=120s CMD ["python", "-c", "import urllib.request as web; web.urlopen('http://127.0.0.1:9876/readyz', timeout=9)"]
CMD ["celery", "batch", "serve", "-c", "deploy/compose/imagenet_resnet18.yaml"]

# The web server and Flower, which load no model: no torch.
FROM runtime AS web
COPY --from=build-web /venv /venv
COPY workers ./workers
COPY webapp ./webapp
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s CMD ["python", "-c", "import urllib.request as web; web.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
CMD ["uvicorn", "webapp.fastapi_app:app", "--host=0.0.0.0", "--port=8000", "--timeout-graceful-shutdown=15"]

FROM runtime AS worker-gpu
COPY --from=build-worker-gpu /venv /venv
COPY workers ./workers
ENV CELERY_BATCH_HEALTH_FILE=/tmp/celery-batch.health
HEALTHCHECK --interval=10s --timeout=5s --start-period=600s CMD ["python", "-m", "celery_batch.cli.health"]
CMD ["celery", "-A", "workers", "worker", "--concurrency=1"]

FROM runtime AS worker
COPY --from=build-worker /venv /venv
COPY workers ./workers
ENV CELERY_BATCH_HEALTH_FILE=/tmp/celery-batch.health
HEALTHCHECK --interval=10s --timeout=5s --start-period=600s CMD ["python", "-m", "celery_batch.cli.health"]
CMD ["celery", "-A", "workers", "worker", "--concurrency=1"]
