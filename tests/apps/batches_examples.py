"""Programs of the kinds that celery-batches documents, with its import line changed."""

from __future__ import annotations

import json
import os
from collections import Counter
from urllib.error import HTTPError
from urllib.request import urlopen

import django
from django.db import models

from celery_batch.batches import Batches
from tests.apps.small_app import remember, small_app

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.apps.sites.django_site")
django.setup()
app = small_app("examples")

FULL = {"base": Batches, "flush_every": 100, "flush_interval": 10}
SOON = {"base": Batches, "flush_every": 100, "flush_interval": 0.5}


class Reading(models.Model):  # noqa: DJ008 (nobody reads its repr)
    """What a sensor has measured."""

    sensor = models.CharField(max_length=20)
    value = models.IntegerField()

    class Meta:
        """Where it is stored."""

        app_label = "examples"
        db_table = "reading"


class Member(models.Model):  # noqa: DJ008 (nobody reads its repr)
    """A user of a site."""

    last_logged_in = models.DateTimeField(null=True)

    class Meta:
        """Where it is stored."""

        app_label = "examples"
        db_table = "member"


@app.task(name="examples.count_pages", **FULL)
def count_pages(requests):
    """Print how often each page was asked for."""
    pages = Counter(request.kwargs["page"] for request in requests)
    for page, number in sorted(pages.items()):
        print(f"asked for {page}: {number}")  # noqa: T201 (as the documented program)


@app.task(name="examples.store_readings", **FULL)
def store_readings(requests):
    """Insert the rows of all calls in one statement."""
    rows = [Reading(**request.kwargs) for request in requests]
    Reading.objects.bulk_create(rows)
    remember("inserted", len(rows))


@app.task(name="examples.note_visits", **FULL)
def note_visits(requests):
    """Update each member once, with the last of its visits."""
    latest = {}
    for request in requests:
        member, when = request.args
        latest[member] = max(when, latest.get(member, when))
    for member, when in latest.items():
        Member.objects.filter(id=member).update(last_logged_in=when)
    remember("updated", len(latest))


def _get(path):
    with urlopen(os.environ["EXAMPLES_API"] + path) as response:  # noqa: S310 (a local server)
        return json.load(response)


@app.task(name="examples.is_known", **FULL)
def is_known(requests):
    """Ask a server for its names, once a batch, and answer each caller."""
    names = set(_get("/names"))
    for request in requests:
        app.backend.mark_as_done(request.id, request.args[0] in names, request=request)


@app.task(name="examples.look_up", **SOON)
def look_up(requests):
    """Ask a server once for each call: one that it refuses fails, without the others."""
    for request in requests:
        try:
            found = _get(f"/names/{request.args[0]}")
        except HTTPError as error:
            app.backend.mark_as_failure(request.id, error, request=request)
        else:
            app.backend.mark_as_done(request.id, found, request=request)


@app.task(name="examples.look_up_again", **SOON)
def look_up_again(requests):
    """As `look_up`, but a call that the server refuses is sent again under its id."""
    for request in requests:
        try:
            found = _get(f"/names/{request.args[0]}")
        except HTTPError:
            look_up_again.apply_async(
                request.args, request.kwargs, task_id=request.id, countdown=0.1
            )
        else:
            app.backend.mark_as_done(request.id, found, request=request)
