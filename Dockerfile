FROM python:3.12-slim
WORKDIR /srv
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY celery_batch ./celery_batch
RUN pip install --no-cache-dir -c constraints.txt '.[torch,web,flower,serve,redis-server]'
COPY workers ./workers
COPY webapp ./webapp
RUN useradd --system --no-create-home serve
USER serve
