"""What an operator may set, and what a Celery app needs to be sent from here."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_batch.errors import ConfigurationError
from webapp.settings import Settings, prepare


def redis_app(**conf):
    """Return an app that has not been used yet; nothing listens at its address."""
    app = Celery("unused", broker="redis://127.0.0.1:1", backend="redis://127.0.0.1:1")
    app.conf.update(conf)
    return app


def test_settings_have_defaults():
    """Without any variable the documented limits hold."""
    expected = Settings(
        timeout=10.0, max_body_bytes=1_048_576, max_inputs=256, max_characters=10_000
    )

    assert expected == Settings.from_environ({})


def test_settings_come_from_the_environment():
    """Each setting has its variable; an empty one counts as unset."""
    environ = {"WEBAPP_TIMEOUT": "2.5", "WEBAPP_MAX_INPUTS": "8", "WEBAPP_MAX_CHARACTERS": ""}

    assert Settings(timeout=2.5, max_inputs=8) == Settings.from_environ(environ)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "ten", "1e999"])
def test_a_wrong_setting_names_its_variable(text):
    """A value that makes no sense stops the start, and says which it was."""
    with pytest.raises(ConfigurationError, match="WEBAPP_TIMEOUT: must be a number of seconds"):
        Settings.from_environ({"WEBAPP_TIMEOUT": text})


def test_a_count_must_be_whole():
    """A limit that counts things is a whole number."""
    with pytest.raises(ConfigurationError, match="WEBAPP_MAX_INPUTS: must be a whole number"):
        Settings.from_environ({"WEBAPP_MAX_INPUTS": "2.5"})


def test_a_prepared_app_is_impatient():
    """In a web server no command to a server may take minutes."""
    app = redis_app()
    prepare(app)

    assert app.conf.redis_socket_timeout <= 5
    assert app.conf.broker_transport_options["socket_timeout"] <= 5
    assert app.backend.thread_safe


def test_what_the_app_sets_itself_is_kept():
    """An operator's own time-outs and options win."""
    options = {"socket_timeout": 30.0, "global_keyprefix": "mine"}
    app = redis_app(redis_socket_timeout=60.0, broker_transport_options=options)
    prepare(app)

    assert 60.0 == app.conf.redis_socket_timeout
    assert options.items() <= app.conf.broker_transport_options.items()


def test_a_celery_app_without_redis_results_is_refused():
    """Answers are awaited through Redis; anything else is refused at the start."""
    app = Celery("unused", broker="redis://127.0.0.1:1", backend="rpc://")
    with pytest.raises(ConfigurationError, match="set CELERY_RESULT_BACKEND"):
        prepare(app)


def test_an_eager_app_is_refused():
    """Eager tasks would run the model in the web server."""
    with pytest.raises(ConfigurationError, match="task_always_eager"):
        prepare(redis_app(task_always_eager=True))


def test_an_app_in_use_is_refused():
    """What has a back end for each thread already cannot be given a common one."""
    app = redis_app()
    app.backend.as_uri()
    with pytest.raises(ConfigurationError, match="used before"):
        prepare(app)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("WEBAPP_TIMOUT", "WEBAPP_TIMEOUT"),
        ("WEBAPP_API_KEY", "WEBAPP_API_KEYS"),
        ("WEBAPP_CONTRACTS", "WEBAPP_CONTRACT"),
    ],
)
def test_a_misspelt_setting_is_told_which_was_meant(wrong, right):
    """A key that is set under a wrong name must not leave the door open."""
    with pytest.raises(ConfigurationError, match=f"{wrong}: .* did you mean {right}"):
        Settings.from_environ({wrong: "1"})


@pytest.mark.parametrize("name", ["WEBAPP_SERVICE_HOST", "WEBAPP_PORT_8000_TCP", "WEBAPP_IMAGE"])
def test_what_others_have_set_is_no_mistake(name):
    """Kubernetes tells of a service that is called webapp in variables of its own."""
    assert Settings() == Settings.from_environ({name: "tcp://10.0.0.1:8000"})
