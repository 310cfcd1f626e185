"""
Random canvases: their shapes, their Celery signatures, and what they ought to give.

A shape is built twice: as a signature for a worker, and by `Evaluation` as plain
function calls, one after the other.  Where Celery's rules are not what one would
guess, the evaluation follows Celery:

* A group in a group becomes one group; its members come in order where the outer
  group is the whole canvas, and turned around everywhere else.
* A body that is a single task hears by its errback that the header failed, though it
  never runs.  Of a body that is a chain the first task does, if the chord is part of a
  chain; if it is all there is, or stands in a group, none does.
* A body that is a chain and opens with a group is not given the header's results.

Where Celery gives no right answer, with ordinary tasks either, a canvas is not drawn;
those are listed at `canvases`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from celery import Celery, Signature, chain, chord, group
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.apps.canvases.digests import digest
from tests.plugins.seeds import seed_for

__all__ = [
    "Broke",
    "Evaluation",
    "Join",
    "Par",
    "Seq",
    "Step",
    "canvases",
    "drawn",
    "sign",
    "steps",
]


@dataclass(frozen=True)
class Step:
    """
    One task.

    Args:
        batch: Whether it is a batch task.
        immutable: Whether it leaves out what came before.
        linked: Whether a callback notes its result.
        mourned: Whether an errback notes its error.
        broken: Whether it fails.
        tag: Its name, which marks its result.
    """

    batch: bool = True
    immutable: bool = False
    linked: bool = False
    mourned: bool = False
    broken: bool = False
    tag: str = ""


@dataclass(frozen=True)
class Seq:
    """A chain."""

    parts: tuple[Any, ...]


@dataclass(frozen=True)
class Par:
    """A group."""

    parts: tuple[Any, ...]


@dataclass(frozen=True)
class Join:
    """A chord."""

    header: tuple[Any, ...]
    body: Any


@dataclass(frozen=True)
class Broke:
    """
    No value: some steps failed.

    Args:
        tags: Which; the error may be that of any of them.
    """

    tags: frozenset[str]


def steps(shape: Any) -> Iterator[Step]:
    """Name the steps of a shape in order."""
    match shape:
        case Step():
            yield shape
        case Seq(parts) | Par(parts):
            for part in parts:
                yield from steps(part)
        case Join(header, body):
            for part in (*header, body):
                yield from steps(part)


def _rebuilt(shape: Any, number: Iterator[int], name: str, broken: int | None) -> Any:
    match shape:
        case Step():
            index = next(number)
            return replace(shape, tag=f"{name}.{index}", broken=index == broken)
        case Seq(parts) | Par(parts):
            return type(shape)(tuple(_rebuilt(each, number, name, broken) for each in parts))
        case Join(header, body):
            parts = tuple(_rebuilt(each, number, name, broken) for each in header)
            return Join(parts, _rebuilt(body, number, name, broken))
    raise TypeError(shape)


def labelled(shape: Any, name: str, fault: int | None) -> Any:
    """Name every step after its canvas and place; let one of them fail, if any is to."""
    size = sum(1 for _ in steps(shape))
    broken = None if fault is None or _may_hush_an_error(shape) else fault % size
    return _rebuilt(shape, iter(range(size)), name, broken)


def _nodes(shape: Any) -> Iterator[Any]:
    yield shape
    match shape:
        case Seq(parts) | Par(parts):
            inner = parts
        case Join(header, body):
            inner = (*header, body)
        case _:
            inner = ()
    for part in inner:
        yield from _nodes(part)


def _last(shape: Any) -> Any:
    match shape:
        case Seq(parts):
            return _last(parts[-1])
        case Join(_, body):
            return _last(body)
    return shape


def _first(shape: Any) -> Any:
    return _first(shape.parts[0]) if isinstance(shape, Seq) else shape


def _is_chord(shape: Any) -> bool:
    return isinstance(shape, Join) or (
        isinstance(shape, Seq) and any(isinstance(part, Par) for part in shape.parts)
    )


def _chords(shape: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Name the header and the first of the body of every chord, written out or not."""
    for node in _nodes(shape):
        if isinstance(node, Join):
            yield node.header, _first(node.body)
        elif isinstance(node, Seq):
            for part, following in pairwise(node.parts):
                if isinstance(part, Par):
                    yield part.parts, _first(following)


def _may_hush_an_error(shape: Any) -> bool:
    """Rules 2 to 4 of `canvases`."""
    return any(
        isinstance(node, Seq | Join) and isinstance(_last(node), Par) for node in _nodes(shape)
    ) or any(
        not isinstance(body, Step)
        or any(_is_chord(node) for part in header for node in _nodes(part))
        for header, body in _chords(shape)
    )


def _goes_astray(shape: Any) -> bool:
    """Rule 1 of `canvases`."""
    bodies = [node.body for node in _nodes(shape) if isinstance(node, Join)]
    ends = [_last(body) for body in bodies]
    return any(isinstance(end, Par) and end is not _last(shape) for end in ends)


def sign(shape: Any, app: Celery, *, batches: bool = True) -> Signature:
    """
    Return the shape's signature.

    Args:
        shape: Labelled.
        app: The client's app.
        batches: Whether to use batch tasks; else ordinary ones throughout.
    """
    match shape:
        case Step():
            return _sign_step(shape, app, batches=batches)
        case Seq(parts):
            return chain(*(sign(part, app, batches=batches) for part in parts), app=app)
        case Par(parts):
            return group([sign(part, app, batches=batches) for part in parts], app=app)
        case Join(header, body):
            tasks = [sign(part, app, batches=batches) for part in header]
            return chord(tasks, sign(body, app, batches=batches), app=app)
    raise TypeError(shape)


def _sign_step(step: Step, app: Celery, *, batches: bool) -> Signature:
    name = "canvas.batch" if step.batch and batches else "canvas.plain"
    signature = app.signature(
        f"{name}_broken" if step.broken else name,
        kwargs={"tag": step.tag},
        immutable=step.immutable,
    )
    if step.linked:
        signature.link(app.signature("canvas.noted", kwargs={"tag": step.tag}))
    if step.mourned:
        signature.link_error(app.signature("canvas.mourned", kwargs={"tag": step.tag}))
    return signature


@dataclass
class Evaluation:
    """What a canvas ought to do, found out one step after the other."""

    ran: list[str] = field(default_factory=list)
    noted: list[list[Any]] = field(default_factory=list)
    mourned: list[str] = field(default_factory=list)

    def whole(self, shape: Any) -> Any:
        """Return the value of a canvas, or which steps broke it."""
        if isinstance(shape, Par):
            return self._together(_flat(shape.parts), None)
        return self.of(shape)

    def of(self, shape: Any, x: Any = None) -> Any:
        """Return the value of a part, or which steps broke it."""
        match shape:
            case Step():
                return self._step(shape, x)
            case Seq(parts):
                return self._in_turn(parts, x)
            case Par(parts):
                return self._together(_turned(parts), x)
            case Join():
                return self._join(shape, x, is_in_chain=False)
        raise TypeError(shape)

    def _join(self, join: Join, x: Any, *, is_in_chain: bool) -> Any:
        body = join.body
        x = self.of(Par(join.header), x)
        if isinstance(x, Broke):
            self._hear_of_header(_first(body) if is_in_chain else body)
            return x
        loses = isinstance(body, Seq) and isinstance(_first(body), Par)
        return self.of(body, None if loses else x)

    def _in_turn(self, parts: tuple[Any, ...], x: Any) -> Any:
        for index, part in enumerate(parts):
            is_join = isinstance(part, Join)
            x = self._join(part, x, is_in_chain=True) if is_join else self.of(part, x)
            if isinstance(x, Broke):
                if isinstance(part, Par) and parts[index + 1 :]:
                    self._hear_of_header(_first(parts[index + 1]))
                break
        return x

    def _hear_of_header(self, body: Any) -> None:
        """A chord's body is told when its header fails, though it never runs."""
        if isinstance(body, Step) and body.mourned:
            self.mourned.append(body.tag)

    def _step(self, step: Step, x: Any) -> Any:
        self.ran.append(step.tag)
        if step.broken:
            if step.mourned:
                self.mourned.append(step.tag)
            return Broke(frozenset([step.tag]))
        value = digest(None if step.immutable else x, step.tag)
        if step.linked:
            self.noted.append([step.tag, value])
        return value

    def _together(self, parts: Iterable[Any], x: Any) -> Any:
        values = [self.of(part, x) for part in parts]
        broke = [value.tags for value in values if isinstance(value, Broke)]
        return Broke(frozenset().union(*broke)) if broke else values


def _flat(parts: tuple[Any, ...]) -> Iterator[Any]:
    """Unroll groups in a group, as Celery does where a group is all there is."""
    for part in parts:
        if isinstance(part, Par):
            yield from _flat(part.parts)
        else:
            yield part


def _turned(parts: tuple[Any, ...]) -> Iterator[Any]:
    """Unroll groups in a group, as Celery does elsewhere: it turns the inner one around."""
    waiting = deque(parts)
    while waiting:
        part = waiting.popleft()
        if isinstance(part, Par):
            waiting.extendleft(part.parts)
        else:
            yield part


def _step() -> st.SearchStrategy[Step]:
    rarely = st.sampled_from([False, False, False, True])
    return st.builds(Step, batch=st.booleans(), immutable=rarely, linked=rarely, mourned=rarely)


def shapes(depth: int) -> st.SearchStrategy[Any]:
    """
    Return a strategy for shapes of at most this depth.

    Args:
        depth: How many chains, groups and chords may lie in one another.
    """
    if depth == 0:
        return _step()
    inner = shapes(depth - 1)
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.one_of(
        _step(),
        several.map(Seq),
        several.map(Par),
        st.builds(Join, several, inner),
    )


def _can_be_expected(shape: Any) -> bool:
    return not isinstance(shape, Step) and not _goes_astray(shape)


def canvases(depth: int = 3) -> st.SearchStrategy[tuple[Any, int | None]]:
    """
    Return a strategy for a shape and, now and then, which of its steps fails.

    Celery 5.7 gives no right answer to some canvases, whatever their tasks are:

    1. After a chord whose body ends in a group, Celery runs what follows once for
       each member of the group.  Such a chord is drawn as a canvas' end only.
    2. A group at the end of a chain or a chord that is never reached gets no result,
       so whoever waits for it waits for ever.
    3. Neither does a chord that is the body of a chord whose header failed,
    4. nor, in many cases, what follows an error in a chord within a chord's header.

    In canvases as in 2 to 4 no step fails.

    Args:
        depth: How many chains, groups and chords may lie in one another.
    """
    fault = st.one_of(st.none(), st.none(), st.none(), st.integers(0, 30))
    return st.tuples(shapes(depth).filter(_can_be_expected), fault)


def drawn(
    number: int, name: str = "canvases", *, depth: int = 3, largest: int = 30
) -> list[tuple[Any, int | None]]:
    """
    Draw canvases by the seed of this run.

    Args:
        number: How many.
        name: Others are drawn for each name.
        depth: How many chains, groups and chords may lie in one another.
        largest: Most steps of a canvas; a few drawn ones are larger and only cost time.
    """
    found: list[tuple[Any, int | None]] = []

    @settings(
        max_examples=2 * number,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(canvases(depth))
    def draw(canvas):
        if canvas not in found and sum(1 for _ in steps(canvas[0])) <= largest:
            found.append(canvas)

    seed(seed_for(name))(draw)()
    assert len(found) >= number
    return found[:number]
