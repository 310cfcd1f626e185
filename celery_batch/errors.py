"""
One tree of errors, shared by every room.

Arguments are plain strings, so that any result serializer can carry an error
from the worker to the caller; the HTTP status lives on the class, so that every
web door can answer with the same one.  A class's docstring is its default message.
"""

from __future__ import annotations

__all__ = [
    "BatchError",
    "ConfigurationError",
    "LoadFailed",
    "MessageRefused",
    "MessageTooLarge",
    "ModelError",
    "OutOfMemory",
    "PoisonItem",
    "WrongResultCount",
]


class BatchError(Exception):
    """Something went wrong while serving a batch."""

    #: What a web server answers when this error reaches it.
    http = 500

    def __str__(self) -> str:
        return super().__str__() or (self.__doc__ or "").strip()


class ConfigurationError(BatchError, ValueError):
    """A setting or task option is wrong."""


class MessageRefused(BatchError, ValueError):
    """The worker could not take the message: it is not what it has to be."""

    http = 400


class MessageTooLarge(MessageRefused):
    """The worker did not take the message: it is too large."""

    http = 413


class ModelError(BatchError):
    """The model could not answer."""


class LoadFailed(ModelError):
    """The model could not be loaded or warmed up."""

    http = 503


class OutOfMemory(ModelError):
    """The item does not fit into memory, even alone."""

    http = 503


class PoisonItem(ModelError):
    """The item took down the process that ran it, more than once."""

    http = 422


class WrongResultCount(ModelError):
    """The model did not return one output per input."""
