# The images of docker-compose.yml: `docker build --target worker .`, likewise worker-gpu, web
# and serve.  Each is a Python with one folder of packages and the code that it runs: what
# builds packages stays behind in the stages before.

FROM python:3.12.12-slim-bookworm AS python
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# Its packages are installed before our code comes: they change seldom, and one has gigabytes.
FROM python AS build
WORKDIR /build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/build/constraints.txt
RUN python -m venv --without-pip /venv
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY celery_batch/__init__.py ./celery_batch/

FROM build AS build-web
RUN pip --python /venv/bin/python install '.[web,flower]'
COPY celery_batch ./celery_batch
RUN pip --python /venv/bin/python install --no-deps --force-reinstall .

FROM build AS build-serve
RUN pip --python /venv/bin/python install '.[serve,onnx,redis-server]'
COPY celery_batch ./celery_batch
RUN pip --python /venv/bin/python install --no-deps --force-reinstall .

# A torch without CUDA: the index has it, and PyPI has only the one with, ten times as large.
FROM build AS build-worker
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip --python /venv/bin/python install --extra-index-url "${TORCH_INDEX}" '.[torch,worker,metrics]'
COPY celery_batch ./celery_batch
RUN pip --python /venv/bin/python install --no-deps --force-reinstall .

# CUDA comes with torch; the driver is the host's, through NVIDIA's container toolkit.
FROM build AS build-worker-gpu
RUN pip --python /venv/bin/python install '.[torch,worker,metrics]'
COPY celery_batch ./celery_batch
RUN pip --python /venv/bin/python install --no-deps --force-reinstall .

FROM python AS runtime
RUN useradd --system --uid 10001 --user-group --no-create-home celery
COPY deploy/docker/entrypoint.sh /usr/local/bin/entrypoint
ENV PATH=/venv/bin:$PATH HOME=/tmp
WORKDIR /srv
USER 10001
ENTRYPOINT ["sh", "/usr/local/bin/entrypoint"]

# A handle behind `celery batch serve`, here the ONNX examples: no torch, and small.
FROM runtime AS serve
COPY --from=build-serve /venv /venv
COPY examples ./examples
COPY deploy/docker ./deploy/docker
EXPOSE 9876
HEALTHCHECK --start-period=120s CMD ["python", "-c", "import urllib.request as web; web.urlopen('http://127.0.0.1:9876/readyz', timeout=9)"]
CMD ["celery", "batch", "serve", "-c", "deploy/docker/imagenet_resnet18.yaml"]

# The web tier and Flower, which know tasks by their names and load no model: no torch.
FROM runtime AS web
COPY --from=build-web /venv /venv
COPY workers ./workers
COPY webapp ./webapp
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", "import urllib.request as web; web.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
CMD ["uvicorn", "webapp.asgi_app:app", "--host=0.0.0.0", "--port=8000", "--no-access-log", "--no-proxy-headers", "--http=webapp.uvicorn_http:BoundedHttp"]

FROM runtime AS worker-gpu
COPY --from=build-worker-gpu /venv /venv
COPY workers ./workers
ENV CELERY_BATCH_PULSE=/tmp/celery-batch.pulse
HEALTHCHECK --start-period=600s CMD ["python", "-m", "celery_batch.cli.health"]
CMD ["celery", "-A", "workers", "worker", "--concurrency=1"]

FROM runtime AS worker
COPY --from=build-worker /venv /venv
COPY workers ./workers
ENV CELERY_BATCH_PULSE=/tmp/celery-batch.pulse
HEALTHCHECK --start-period=600s CMD ["python", "-m", "celery_batch.cli.health"]
CMD ["celery", "-A", "workers", "worker", "--concurrency=1"]
