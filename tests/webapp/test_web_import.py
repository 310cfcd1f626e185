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
