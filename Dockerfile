FROM python:3.12-slim AS base
WORKDIR /srv
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY celery_batch ./celery_batch
RUN useradd --system --no-create-home serve

# A handle behind `celery batch serve`, here the ONNX examples: no torch, and small.
FROM base AS serve
RUN pip install --no-cache-dir -c constraints.txt '.[serve,onnx,redis-server]'
COPY examples ./examples
COPY deploy/docker ./deploy/docker
USER serve
CMD ["celery", "batch", "serve", "-c", "deploy/docker/imagenet_resnet18.yaml"]

# The example worker, the web app and Flower.
FROM base
RUN pip install --no-cache-dir -c constraints.txt '.[torch,web,flower]'
COPY workers ./workers
COPY webapp ./webapp
USER serve
