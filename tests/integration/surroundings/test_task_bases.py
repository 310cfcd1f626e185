"""Batch tasks with the task classes of frameworks and applications."""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from tests.services.forked import run
from tests.services.launcher import Launcher

ITEMS = ("a", "bad", "flaky", "b")

#: A Django view, in short: tasks are sent when the transaction is through, or not at all.
VIEW = """
import json, django
from tests.apps.sites.django_tasks import count
django.setup()
from django.db import transaction
sent = []
count.delay = lambda *args: sent.append(args)
with transaction.atomic():
    count.delay_on_commit(1)
    before = list(sent)
try:
    with transaction.atomic():
        count.delay_on_commit(2)
        raise RuntimeError
except RuntimeError:
    pass
print(json.dumps([before, sent, count.max_batch_size, count.app.conf.batch_max_size]))
"""

MIGRATE = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.apps.sites.django_site"
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "migrate", "-v", "0"])
"""

READ = """
import json, sys, django
from tests.apps.sites.django_tasks import app
django.setup()
from django_celery_results.models import TaskResult
found = {row.task_id: [row.status, row.as_dict()["result"]] for row in TaskResult.objects.all()}
print(json.dumps(found))
"""

#: Views of a Django site that wait for answers which lie in its database.
WAIT = """
import asyncio, json, django
from tests.apps.sites.django_tasks import app, count
django.setup()
from django.http import HttpResponse
from django.test import AsyncRequestFactory, RequestFactory

def view(request):
    return HttpResponse(count.delay(1).get(timeout=30))

async def async_view(request):
    results = [await count.adelay(number) for number in range(2, 6)]
    async with asyncio.timeout(30):
        return HttpResponse(json.dumps(await asyncio.gather(*results)))

plain = view(RequestFactory().get("/"))
many = asyncio.run(async_view(AsyncRequestFactory().get("/")))
print(json.dumps([int(plain.content), *json.loads(many.content)]))
"""


@pytest.fixture(scope="module")
def flask(launcher: Launcher) -> Celery:
    """Return a client of the Flask site's worker."""
    conf = {"task_default_queue": "flask"}
    launcher.worker("tests.apps.sites.flask_site", "-c", "1", conf=conf)
    return launcher.client(**conf)


@pytest.fixture(scope="module")
def hooked(launcher: Launcher) -> Celery:
    """Return a client of the worker whose tasks have hooks."""
    conf = {"task_default_queue": "hooked"}
    launcher.worker("tests.apps.hooked", "-c", "1", conf=conf)
    return launcher.client(**conf)


@pytest.mark.parametrize("name", ["site.greet", "site.greet_by_hand"])
def test_flask_tasks_have_the_sites_context(launcher: Launcher, flask: Celery, name: str):
    """`base=BatchTask` keeps Flask's task class, as does a class made of both."""
    launcher.redis.delete("stage:goodbye")
    results = [flask.send_task(name, (each,)) for each in ("Ada", "Bob", "Cy")]

    assert ["hello Ada", "hello Bob", "hello Cy"] == [result.get(timeout=30) for result in results]
    assert "hello" == flask.send_task("site.plain").get(timeout=30)
    # One context for each item and the plain task; the function saw the last item's.
    assert ["nobody"] * 3 + [["Ada", "Bob", "Cy"]] == sorted(
        launcher.await_facts("goodbye", 4), key=str, reverse=True
    )


@pytest.mark.parametrize("name", ["hooked.batch", "hooked.plain"])
def test_hooks_are_called_for_each_item(launcher: Launcher, hooked: Celery, name: str):
    """Each item's hooks come in order with its own request, as in an ordinary task."""
    launcher.redis.delete("stage:hooks")
    results = [hooked.send_task(name, (item,)) for item in ITEMS]
    for result in results:
        result.get(timeout=30, propagate=False)
    hooks = defaultdict(list)
    for task_id, *facts, current in launcher.await_facts("hooks", 14):
        assert task_id == current
        hooks[task_id].append(facts)

    assert {
        results[0].id: worked("a"),
        results[1].id: [
            ["before_start", "bad"],
            ["on_failure", "a bad item"],
            ["after_return", "FAILURE"],
        ],
        results[2].id: [
            ["before_start", "flaky"],
            ["on_retry", "not yet"],
            *worked("flaky"),
        ],
        results[3].id: worked("b"),
    } == hooks


def test_call_of_a_base_class_wraps_each_item(launcher: Launcher, hooked: Celery):
    """A base class that wraps ``__call__`` and calls the one above it does so for each item."""
    launcher.redis.delete("stage:called")
    results = [hooked.send_task("hooked.batch", (n,)) for n in range(3)]

    assert [0, 2, 4] == [result.get(timeout=30) for result in results]
    assert sorted(result.id for result in results) == sorted(launcher.facts("called"))


def worked(item: str) -> list[list[Any]]:
    """Return the hooks of an item that went well."""
    return [["before_start", item], ["on_success", item * 2], ["after_return", "SUCCESS"]]


#: An app that knows Celery's own tasks, and none of those that other tests have made.
EVERY_TASK = """
from celery import Celery
from celery_batch import BatchTask, ConfigurationError
try:
    Celery("all", task_cls=BatchTask).finalize()
except ConfigurationError as error:
    print(error)
"""


def test_batch_task_cannot_be_every_task(in_python: Callable[..., str]):
    """An app whose every task would be a batch task is told what to do instead."""
    assert "name it as base= of the tasks that take batches" in in_python(EVERY_TASK)


def in_django(code: str, **env: str) -> str:
    """Run a snippet in a process that has imported Django, and return what it prints."""
    imports = ("django.core.management", "django.db", "django.test", "django_celery_results")
    done = run([sys.executable, "-c", code], env={**os.environ, **env}, imports=imports)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_django_sends_after_the_transaction():
    """Django's delay_on_commit works on batch tasks; settings are read from Django's."""
    before, sent, own, setting = json.loads(in_django(VIEW, SMALL_APP_MEMORY="unused"))

    assert [] == before
    assert [[1]] == sent
    assert own is None
    assert 8 == setting


def test_django_closes_connections_and_keeps_results(launcher: Launcher):
    """Celery's care for Django's database reaches batches, and django-db keeps their results."""
    database = str(launcher.folder / "site.sqlite")
    in_django(MIGRATE, SMALL_APP_DATABASE=database)
    conf = {"task_default_queue": "django", "result_backend": "django-db"}
    module = "tests.apps.sites.django_tasks"
    worker = launcher.worker(module, "-c", "1", conf=conf, SMALL_APP_DATABASE=database)
    app = launcher.client(task_default_queue="django")
    launcher.redis.delete("stage:open", "stage:counted")
    sent = [app.send_task("djangosite.count", (item,)) for item in (0, "bad", 2)]
    launcher.await_facts("counted", 3)
    sent.append(app.send_task("djangosite.count", (3,)))
    launcher.await_facts("counted", 4)  # in two batches or more, as they came
    worker.stop(60)  # the last results may be on their way
    found = json.loads(in_django(READ, SMALL_APP_DATABASE=database, SMALL_APP_MEMORY="unused"))
    states = [found[result.id][0] for result in sent]

    assert {False} == set(launcher.facts("open"))
    assert ["SUCCESS", "FAILURE", "SUCCESS", "SUCCESS"] == states
    assert ["42", "44", "45"] == [found[sent[n].id][1] for n in (0, 2, 3)]


def test_django_waits_for_what_its_database_keeps(launcher: Launcher):
    """Nobody tells of results in django-db, and views that wait for some have them all the same."""
    database = str(launcher.folder / "waiting.sqlite")
    in_django(MIGRATE, SMALL_APP_DATABASE=database)
    conf = {"task_default_queue": "django-waits", "result_backend": "django-db"}
    launcher.worker(
        "tests.apps.sites.django_tasks", "-c", "1", conf=conf, SMALL_APP_DATABASE=database
    )
    surroundings = {
        "CELERY_BROKER_URL": launcher.broker,
        "SMALL_APP_CONF": json.dumps(conf),
        "SMALL_APP_DATABASE": database,
    }

    assert [43, 44, 45, 46, 47] == json.loads(in_django(WAIT, **surroundings))
