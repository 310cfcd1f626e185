"""A web process is small: it sends tasks and knows no model."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import sys
import webapp.flask_app, webapp.asgi_app
import webapp.django_app.wsgi, webapp.django_app.asgi, webapp.django_app.urls
import webapp.django_app.async_urls
wrong = {"torch", "transformers", "numpy", "celery_batch.worker"} & set(sys.modules)
print(sorted(wrong), webapp.flask_app.app.name)
"""


def test_the_web_process_imports_no_model(request):
    """Importing the apps brings neither torch nor the worker's side with it."""
    url = "redis://127.0.0.1:1"  # never connected to
    environ = {**os.environ, "CELERY_BROKER_URL": url, "CELERY_RESULT_BACKEND": url}
    output = subprocess.check_output(
        [sys.executable, "-c", CODE], cwd=request.config.rootpath, env=environ, text=True
    )

    assert "[] webapp" == output.strip()


@pytest.mark.parametrize("settings", ["settings", "asgi_settings"])
def test_django_finds_nothing_wrong(request, settings):
    """The Django project passes Django's own checks, those for deployment too."""
    url = "redis://127.0.0.1:1"
    environ = {**os.environ, "CELERY_BROKER_URL": url, "CELERY_RESULT_BACKEND": url}
    environ["DJANGO_SETTINGS_MODULE"] = f"webapp.django_app.{settings}"
    command = [sys.executable, "-m", "webapp.django_app.manage", "check", "--deploy"]
    output = subprocess.check_output(
        [*command, "--fail-level=WARNING"], cwd=request.config.rootpath, env=environ, text=True
    )

    assert output.startswith("System check identified no issues")


SERVERS = {
    "gunicorn": ("gunicorn", "--no-control-socket", "--bind=127.0.0.1:0", "webapp.flask_app:app"),
    "preload": ("gunicorn", "--preload", "--bind=127.0.0.1:0", "webapp.django_app.wsgi"),
    "uvicorn": ("uvicorn", "--port=0", "webapp.asgi_app:app"),
    "django-asgi": ("uvicorn", "--port=0", "webapp.django_app.asgi:application"),
    "django": ("webapp.django_app.manage", "check"),
}


def refused(request, server, **environ):
    """Return the status and the words of a server that does not start."""
    url = "redis://127.0.0.1:1"
    urls = {"CELERY_BROKER_URL": url, "CELERY_RESULT_BACKEND": url}
    ended = subprocess.run(
        [sys.executable, "-m", *SERVERS[server]],
        cwd=request.config.rootpath,
        env={**os.environ, **urls, **environ},
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stdout


@pytest.mark.parametrize("server", SERVERS)
def test_a_wrong_setting_is_said_and_nothing_else(request, server):
    """A server that a setting keeps from starting ends with one line about it, and no trace."""
    status, words = refused(request, server, WEBAPP_MAX_QUEUE="abc")

    assert 4 == status
    assert "Error: WEBAPP_MAX_QUEUE: must be a whole number above 0, got 'abc'\n" in words
    assert "Traceback" not in words


@pytest.mark.parametrize(
    ("environ", "what"),
    [
        ({"WEBAPP_MAXQUEUE": "3"}, "WEBAPP_MAXQUEUE: there is no such setting; did you mean"),
        ({"CELERY_RESULT_BACKEND": "rpc://"}, "set CELERY_RESULT_BACKEND to the URL of a Redis"),
        ({"WEBAPP_API_KEYS_FILE": "/nowhere/keys"}, "WEBAPP_API_KEYS_FILE: "),
        ({"WEBAPP_CONTRACT": "webap:it"}, "there is no module webap; did you mean webapp?"),
    ],
)
def test_whatever_is_set_wrongly_is_said_in_a_line(request, environ, what):
    """It makes no difference which setting it is."""
    _, words = refused(request, "uvicorn", **environ)

    assert what in words
    assert 1 == len(words.splitlines())


def test_a_bug_keeps_its_trace(request, tmp_path):
    """What fails inside a contract's own module is shown with where it did."""
    (tmp_path / "my_broken.py").write_text("contract = {}['nothing']\n")
    path = os.pathsep.join([str(tmp_path), str(request.config.rootpath)])
    _, words = refused(request, "gunicorn", WEBAPP_CONTRACT="my_broken:it", PYTHONPATH=path)

    assert "Traceback" in words
    assert "my_broken.py" in words
