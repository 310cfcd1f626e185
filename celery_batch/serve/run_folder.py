"""The private folders with the sockets and logs of served handles, one for each port."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from celery_batch.errors import ConfigurationError
from celery_batch.processes.redis_server import SOCKET_PATH_LIMIT, why_not_private

__all__ = ["CONFIG_FILE", "clear", "is_live", "live_folders", "lock", "usual_folder"]

#: The configuration that is served from a folder; a folder without it is not ours.
CONFIG_FILE = "serve.json"

#: The file that is locked by the command that serves from a folder.
_LOCK = "lock"

_IN_USE = "`celery batch serve` runs from here already"


def usual_folder(port: int) -> Path:
    """Return where the files of a web server on this port lie, unless a folder is given."""
    return _home() / str(port)


def live_folders() -> Iterator[Path]:
    """Return the usual folders of this user from which something is served."""
    home = _home()
    if home.is_dir() and not _why_not_private(home):
        yield from sorted(folder for folder in home.iterdir() if is_live(folder))


def is_live(folder: Path) -> bool:
    """Return whether something is served from a folder."""
    try:
        with (folder / _LOCK).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no such file, or it is not ours
        return False
    return False


def lock(folder: Path) -> IO[str]:
    """Show that something is served from a folder, as long as the file is open."""
    file = (folder / _LOCK).open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ConfigurationError(f"{folder}: {_IN_USE}") from error
    return file


def clear(folder: Path) -> None:
    """Make a private, empty folder; files that a killed `serve` has left there are removed."""
    if len(os.fsencode(folder / "redis" / "redis.sock")) >= SOCKET_PATH_LIMIT:
        raise ConfigurationError(
            f"{folder}: too long for a socket in it; name a folder with a shorter path by --dir"
        )
    if folder.parent == _home():
        _make_private(folder.parent)
    if is_live(folder):
        raise ConfigurationError(f"{folder}: {_IN_USE}")
    if folder.exists() and any(folder.iterdir()) and not (folder / CONFIG_FILE).exists():
        raise ConfigurationError(f"{folder}: holds other things; name an empty folder by --dir")
    _make_private(folder)
    for each in folder.iterdir():  # only now is it known to be ours
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()


def _make_private(folder: Path) -> None:
    with suppress(FileExistsError):  # as a link to nowhere does
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if trouble := _why_not_private(folder):
        raise ConfigurationError(f"{folder}: {trouble}")


def _why_not_private(folder: Path) -> str:
    """Return why other users could reach what is in a folder, or have made it; else nothing."""
    # Others know the usual folder's name, and can make it a link; a link that is given is ours.
    is_usual = _home() in (folder, folder.parent)
    status = folder.lstat() if is_usual else folder.stat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return "belongs to another user, or is a link; name another folder by --dir"
    return why_not_private(folder)


def _home() -> Path:
    return Path(tempfile.gettempdir()) / f"celery-batch-{os.getuid()}"
