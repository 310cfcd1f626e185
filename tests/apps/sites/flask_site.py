"""A Flask site whose tasks have the app's context, as Flask's documentation has it."""

from __future__ import annotations

from celery import Task, shared_task
from flask import Flask, current_app, g

from celery_batch import BatchTask
from tests.apps.small_app import remember, small_app

site = Flask("site")
site.config["GREETING"] = "hello"


class FlaskTask(Task):
    """Runs each task inside the site's context; from Flask's documentation."""

    def __call__(self, *args, **kwargs):
        """Run the task."""
        with site.app_context():
            return self.run(*args, **kwargs)


class FlaskBatchTask(FlaskTask, BatchTask):
    """The same for batches."""


@site.teardown_appcontext
def goodbye(_error):
    """Remember for whom a context ended."""
    remember("goodbye", g.get("asked", "nobody"))


app = small_app("site", task_cls=FlaskTask)
app.set_default()
site.extensions["celery"] = app


def greet(name):
    """Greet everybody in the words of the site's configuration."""
    g.asked = name
    return [f"{current_app.config['GREETING']} {one}" for one in name]


#: A batch leaves when the three calls of a test are there, however slowly they come.
GREETS = {"max_batch_size": 3, "max_wait": 100, "linger": 100}
shared_task(base=BatchTask, name="site.greet", **GREETS)(greet)
shared_task(base=FlaskBatchTask, name="site.greet_by_hand", **GREETS)(greet)


@shared_task(name="site.plain")
def plain():
    """Greet nobody in particular, as an ordinary task of the site."""
    return current_app.config["GREETING"]
