"""The Flask door to the stand-in service, for gunicorn."""

from __future__ import annotations

import os

from web_standin_tasks import answer, answer_one

from webapp.contract import Contract
from webapp.flask_app import create_app
from webapp.settings import Settings

app = create_app(Contract(answer, answer_one, Settings.from_environ(os.environ)))
