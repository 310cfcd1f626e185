"""What a backfill asks of the disk: to be told in words, to be safe, to have a file alone."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from celery_batch.errors import BackfillError

__all__ = ["locked", "sync_folder", "writing"]


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """
    Have whoever runs the command told what cannot be written.

    Args:
        path: What is written.

    Raises:
        BackfillError: It cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise BackfillError(
            f"{path}: cannot be written: {error.strerror or error}; what was answered is kept,"
            " and the same command goes on once it can"
        ) from error


def sync_folder(folder: Path) -> None:
    """Make what was renamed in a folder safe."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def locked(partial: Path) -> IO[bytes]:
    """
    Open a file for appending that nobody else may write meanwhile.

    Args:
        partial: Its path; it is made if there is none.

    Raises:
        BackfillError: It cannot be written, or another process is writing it.
    """
    try:
        file = partial.open("a+b")
    except OSError as error:
        folder = partial.parent
        why = error.strerror if folder.exists() else f"there is no folder {folder}"
        raise BackfillError(f"{partial}: cannot be written: {why}") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_there = partial.exists() and os.path.samestat(partial.stat(), os.fstat(file.fileno()))
    except OSError:
        is_there = False
    if not is_there:  # or removed since it was opened
        file.close()
        raise BackfillError(f"{partial}: another backfill is writing it")
    return file
