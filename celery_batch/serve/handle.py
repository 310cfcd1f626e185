"""
The user's side of `celery batch serve`: a handle, from a request's envelope to its answer.

In a subclass of `Handle`, `forward` takes a list; any other class is one of easy-serve's, and is
called with one envelope at a time.  An envelope is ``{"task_id": str, "task_info": dict}``;
``task_info`` is the JSON object that the client posted.  What `postprocess` returns is the JSON
that it gets.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

__all__ = ["NO_GPU", "BaseHandle", "Handle", "Registry", "registry"]

Class = TypeVar("Class", bound=type)

#: The id of the GPU where there is none; a number, as easy-serve's handles call `int` on it.
NO_GPU = "-1"


class Handle:
    """
    Serves requests in batches: override `forward`, and what you need of the rest.

    One instance lives in each worker process, which sees one GPU at most.

    Args:
        gpu: The id of its GPU: ``"0"``, since the process sees no other; ``"-1"``
            without a GPU.
    """

    def __init__(self, gpu: str) -> None:
        self.gpu = gpu

    @property
    def device(self) -> str:
        """The device for the model, as torch calls it, ``"cuda:0"`` or ``"cpu"``."""
        return "cpu" if self.gpu == NO_GPU else f"cuda:{self.gpu}"

    def examples(self) -> Sequence[dict[str, Any]]:
        """Return objects as clients post them, to warm up with before the first request."""
        return ()

    def preprocess(self, data: dict[str, Any]) -> Any:
        """
        Get one request ready for `forward`; runs on threads beside others of its batch.

        Args:
            data: The envelope; it may be changed and returned, or replaced.

        Returns:
            What `forward` gets for this request.

        Raises:
            ValueError: The request is wrong; it fails alone, with status 422.
        """
        return data

    def forward(self, batch: list[Any]) -> Sequence[Any]:
        """
        Run the model once, for a list.

        Args:
            batch: What `preprocess` returned, one for each request.

        Returns:
            One output for each, in order.  An `Exception` in place of one fails that
            request alone; if it raises, it is tried again with halves of the list,
            so that a bad request fails alone.
        """
        raise NotImplementedError(f"{type(self).__name__} must define forward(batch)")

    def postprocess(self, data: Any) -> Any:
        """
        Make an answer of one output; runs on threads beside others of its batch.

        Args:
            data: What `forward` returned for this request.

        Returns:
            What the client gets as JSON.
        """
        return data

    def __call__(self, data: dict[str, Any]) -> Any:
        """
        Serve one envelope alone, as in a test of your handle.

        Args:
            data: The envelope.
        """
        (output,) = self.forward([self.preprocess(data)])
        return self.postprocess(output)


class BaseHandle(ABC):
    """easy-serve's base class: every method takes one envelope and returns it."""

    @abstractmethod
    def preprocess(self, data: Any) -> Any:
        """Get one envelope ready; see `Handle.preprocess`."""

    @abstractmethod
    def forward(self, data: Any) -> Any:
        """Run the model on one envelope, and put its output in; see `Handle.forward`."""

    @abstractmethod
    def postprocess(self, data: Any) -> Any:
        """Make an answer of one envelope; see `Handle.postprocess`."""

    @abstractmethod
    def __call__(self, data: Any) -> Any:
        """Do all three; see `Handle`."""


class Registry:
    """Handles by the name of their class, as configuration files call them."""

    def __init__(self) -> None:
        #: Name -> class; easy-serve's name for it.
        self.class_dict: dict[str, type] = {}

    def reg(self) -> Callable[[Class], Class]:
        """Return a decorator that registers a class: ``@registry.reg()``."""

        def register(cls: Class) -> Class:
            self.class_dict[cls.__name__] = cls
            return cls

        return register


#: Where ``Handle: ClassName`` is looked up.
registry = Registry()
