"""A web process is small: it sends tasks and knows no model."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
import sys
import webapp.flask_app
wrong = {"torch", "transformers", "numpy", "celery_batch.worker"} & set(sys.modules)
print(sorted(wrong), webapp.flask_app.app.name)
"""


def test_the_web_process_imports_no_model(request):
    """Importing the Flask app brings neither torch nor the worker's side with it."""
    url = "redis://127.0.0.1:1"  # never connected to
    environ = {**os.environ, "CELERY_BROKER_URL": url, "CELERY_RESULT_BACKEND": url}
    output = subprocess.check_output(
        [sys.executable, "-c", CODE], cwd=request.config.rootpath, env=environ, text=True
    )

    assert "[] webapp" == output.strip()
