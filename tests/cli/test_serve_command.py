"""What ``celery batch serve`` and ``celery batch status`` refuse before anything starts."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from celery_batch.cli.deployment import source_of
from celery_batch.cli.serve import serve, status
from celery_batch.errors import ConfigurationError
from celery_batch.serve import run_folder
from celery_batch.serve.config import ServeConfig
from celery_batch.serve.run_folder import CONFIG_FILE, clear, lock


@pytest.fixture
def refusal(tmp_path):
    """Call a command that fails, and return what it says."""

    def run(command, *options, config="GPUs: cpu\nHandle: H\n"):
        path = tmp_path / "serve.yaml"
        path.write_text(config)
        given = ["-c", str(path)] if command is serve else []
        done = CliRunner().invoke(command, [*given, *options])
        assert 1 == done.exit_code, done.output
        return done.output

    return run


def test_a_wrong_file_is_refused_with_its_line(refusal):
    """Nothing starts, and there is no traceback."""
    said = refusal(serve, config="Handle: H\nGPU: 0\n")

    assert said.startswith("Error: ")
    assert said.endswith("serve.yaml:2: GPU: no such key; did you mean GPUs?\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "give a handle as module:Class, or a file by -c"),
        (["a:B", "-c", __file__], "give a handle as module:Class, or a file by -c"),
        (["a:B", "--gpus", "0,0"], "--gpus: a GPU is named twice in '0,0'"),
        (["a:B", "--workers", "0"], "0 is not in the range x>=1"),
        (["a/b.py:B"], "must be module:Class, or a class in handle.py, got 'a/b.py:B'"),
        (["no_such:B", "--reload"], "no module no_such for no_such:B"),
    ],
)
def test_wrong_arguments_are_refused(options, said):
    """Nothing starts, and what to write is said."""
    done = CliRunner().invoke(serve, options)

    assert 0 != done.exit_code
    assert said in done.output
    assert not isinstance(done.exception, ConfigurationError)


def test_options_win_over_the_file(tmp_path, monkeypatch):
    """Those that are given; the file's other values stay."""
    path = tmp_path / "serve.yaml"
    path.write_text("Handle: a:B\nGPUs: cpu\nMaxBatchSize: 8\nMaxWait: 1\nPort: 80\n")
    made = []

    def deployment(config, _folder):
        made.append(config)
        raise ConfigurationError("no further")

    monkeypatch.setattr("celery_batch.cli.deployment.Deployment", deployment)
    options = ["--gpus", "1", "--max-wait", "0.5", "--host", "::1", "--workers", "2"]
    CliRunner().invoke(serve, ["-c", str(path), *options])
    CliRunner().invoke(serve, ["a:B", *options, "--port", "80", "--max-batch-size", "8"])

    wanted = ServeConfig(
        "a:B",
        ("cuda:1",),
        queue="B",
        max_batch_size=8,
        max_wait=0.5,
        host="::1",
        port=80,
        web_workers=2,
    )
    assert [wanted, wanted] == made


def test_the_file_of_a_module_is_found_without_importing_it(tmp_path):
    """A module, one in a package, a package; a folder without an __init__.py has none."""
    for name in ("plain.py", "package/__init__.py", "package/inner.py", "bare/inner.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise RuntimeError('imported')")

    def found(module):
        return source_of(f"{module}:A", [str(tmp_path)]).relative_to(tmp_path)

    assert Path("plain.py") == found("plain")
    assert Path("package/__init__.py") == found("package")
    assert [Path("package/inner.py"), Path("bare/inner.py")] == [
        found("package.inner"),
        found("bare.inner"),
    ]
    with pytest.raises(ConfigurationError, match="bare is a folder without"):
        found("bare")


def test_a_port_in_use_is_refused(refusal, tmp_path):
    """Rather than found out by a web server that ends again and again."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        said = refusal(serve, "--port", port, "--dir", str(tmp_path / "run"))

    assert f"the web server cannot listen on 127.0.0.1, port {port}" in said


def test_a_broker_that_is_away_is_refused_without_its_password(refusal, tmp_path):
    """A misspelt URL is seen at once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = f"Handle: H\nGPUs: cpu\nBroker: redis://:secret@127.0.0.1:{port}/0\n"
    said = refusal(serve, "--port", str(port), "--dir", str(tmp_path / "run"), config=config)

    assert "Broker: redis://" in said
    assert "cannot be reached" in said
    assert "secret" not in said


def test_status_without_anything_served_says_so(refusal, monkeypatch, tmp_path):
    """And names the command for workers, which the reader may have looked for."""
    monkeypatch.setattr(run_folder, "_home", lambda: tmp_path / "home")

    assert "`celery batch serve` does not run here; for workers see" in refusal(status)
    assert "nothing is served from here" in refusal(status, "--dir", str(tmp_path))


def test_a_folder_is_made_private_and_cleared_of_a_former_run(tmp_path):
    """What a killed command has left is removed."""
    folder = tmp_path / "run"
    clear(folder)
    (folder / CONFIG_FILE).touch()
    (folder / "web.log").touch()
    clear(folder)

    assert [] == list(folder.iterdir())
    assert 0o700 == folder.stat().st_mode & 0o777


def test_a_folder_that_is_no_former_run_is_left_alone(tmp_path):
    """Files of others are never removed."""
    (tmp_path / "thesis").touch()

    with pytest.raises(ConfigurationError, match="holds other things"):
        clear(tmp_path)


def test_a_folder_in_use_is_refused(tmp_path):
    """Two commands never share one."""
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o700)
    with lock(folder):
        for refuse in (clear, lock):
            with pytest.raises(ConfigurationError, match="runs from here already"):
                refuse(folder)


def test_a_folder_of_others_is_refused(tmp_path):
    """They could put a socket of their own in it."""
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(0o755)

    with pytest.raises(ConfigurationError, match=f": chmod 700 {folder}"):
        clear(folder)


@pytest.mark.parametrize("whose", ["writable by all", "another user's", "a link"])
def test_nothing_is_removed_from_a_folder_of_others(whose, monkeypatch, short_path):
    """The usual folder's name can be known: files in one that others made are not removed."""
    home, elsewhere = short_path / "home", short_path / "elsewhere"
    monkeypatch.setattr(run_folder, "_home", lambda: home)
    (elsewhere / "80").mkdir(parents=True)
    for each in (elsewhere, elsewhere / "80"):
        each.chmod(0o700)
    for name in (CONFIG_FILE, "thesis"):
        (elsewhere / "80" / name).touch()
    if whose == "a link":
        home.symlink_to(elsewhere)
    else:
        elsewhere.rename(home)
    if whose == "writable by all":
        home.chmod(0o777)
    elif whose == "another user's":
        monkeypatch.setattr(os, "getuid", lambda: home.stat().st_uid + 1)

    with pytest.raises(ConfigurationError, match=r"others have rights|belongs to another user"):
        clear(home / "80")
    assert (home / "80" / "thesis").exists()
    assert [] == list(run_folder.live_folders())


def test_a_link_to_nowhere_is_no_folder(monkeypatch, short_path):
    """What others have made in our folder's place is refused, whatever it is."""
    home = short_path / "home"
    monkeypatch.setattr(run_folder, "_home", lambda: home)
    home.symlink_to(short_path / "nowhere")

    with pytest.raises(ConfigurationError, match="is a link"):
        clear(home / "80")


def test_a_path_too_long_for_a_socket_is_refused(tmp_path):
    """With the option that helps."""
    with pytest.raises(ConfigurationError, match="--dir"):
        clear(tmp_path / ("x" * 100))


@pytest.fixture
def short_path():
    """A folder whose path leaves room for a socket's; pytest's own are long under xdist."""
    with tempfile.TemporaryDirectory(prefix="cb") as folder:
        yield Path(folder)


def test_each_port_of_a_user_has_a_usual_folder(monkeypatch, short_path):
    """So that two servers on one machine do not meet, and status finds both."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(short_path))
    folder = run_folder.usual_folder(9876)
    clear(folder)
    (folder.parent / "a file").touch()

    assert short_path / f"celery-batch-{os.getuid()}" / "9876" == folder
    assert 0o700 == folder.parent.stat().st_mode & 0o777
    assert [] == list(run_folder.live_folders())
    with lock(folder):
        assert [folder] == list(run_folder.live_folders())
