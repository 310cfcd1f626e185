"""The inputs of one request, some sent by itself and some by others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from webapp.sharing import Flight, Known, Sharing
from webapp.ways import Way

__all__ = ["Trip"]

T = TypeVar("T")

#: Sends the inputs with these indices, and returns their results.
Send = Callable[[list[int]], Awaitable[Sequence[Any]]]


class Trip:
    """
    Places for the inputs of one request; to be left in the end, whatever comes.

    Args:
        sharing: The flights of this process.
        keys: What is asked, for each input.
        deadline: When the request gives up, by the monotonic clock.
    """

    def __init__(self, sharing: Sharing, keys: Sequence[bytes | None], deadline: float) -> None:
        self._sharing = sharing
        self._deadline = deadline
        #: Flights that we lead and have not sent, each with the index of an input.
        self._ours: dict[Flight, int] = {}
        self._places: list[Flight | Known] = [Known(None)] * len(keys)
        self._board(dict(enumerate(keys)))

    def _board(self, keys: dict[int, bytes | None]) -> None:
        boarded = self._sharing.board(keys.values(), self._deadline)
        for index, (place, is_ours) in zip(keys, boarded, strict=True):
            self._places[index] = place
            if is_ours and isinstance(place, Flight):
                self._ours[place] = index

    async def send(self, way: Way, send: Send) -> None:
        """
        Have all inputs sent that are not on their way, and wait until all are.

        Args:
            way: How to wait for others.
            send: Sends ours.

        Raises:
            TimeoutError: Others took too long.
            Exception: What sending one of them has failed with, here or where it was sent.
        """
        while True:
            await self._send_ours(send)
            abandoned = {}
            for index, place in self._flights():
                if await way.done(place.sent, self._deadline) is None:
                    abandoned[index] = place.key
            if not abandoned:
                return
            left = [place for index, place in self._flights() if index in abandoned]
            self._sharing.leave(left)
            self._board(abandoned)

    async def _send_ours(self, send: Send) -> None:
        ours, self._ours = self._ours, {}
        if not ours:
            return
        try:
            results = await send([*ours.values()])
        except BaseException as error:
            # Anything else than an error says that it is only we who give up.
            fault = error if isinstance(error, Exception) else None
            for flight in ours:
                self._sharing.fail(flight, fault)
            raise
        for flight, result in zip(ours, results, strict=True):
            flight.sent.set_result(result)

    @property
    def results(self) -> list[Any]:
        """The results to wait for, each once."""
        return [flight.result for flight in dict.fromkeys(each for _, each in self._flights())]

    def outcomes(self, outcome_of: Callable[[Any], T], known: Callable[[Any], T]) -> list[T]:
        """
        Return what became of each input, in order.

        Args:
            outcome_of: Makes it of a result that has come.
            known: Makes it of an output that was known.
        """
        return [
            outcome_of(place.result) if isinstance(place, Flight) else known(place.value)
            for place in self._places
        ]

    def leave(self) -> list[str]:
        """Wait no more; return the ids of tasks that nobody waits for and that may still run."""
        for flight in self._ours:
            self._sharing.fail(flight, None)
        flights, self._ours = [flight for _, flight in self._flights()], {}
        self._places = []
        return self._sharing.leave(flights)

    def _flights(self) -> list[tuple[int, Flight]]:
        places = enumerate(self._places)
        return [(index, place) for index, place in places if isinstance(place, Flight)]
