"""What ``map`` returns: an iterator of results that is also the handle of the run."""

import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from typing import Any, Generic, TypeVar

from evenload.balance.policy import Policy, policy_from_name
from evenload.devices.fork_guard import ForkGuard
from evenload.errors import ConfigError, not_sendable
from evenload.executor.decide.delivery import Block, Delivery
from evenload.executor.decide.summary import Summary

R = TypeVar("R")
N_AT_ONCE = 1024  # results after which others on a caller's event loop get their turn


class Results(Generic[R]):
    """The results of a map. Work begins with the first one asked for, and ends with the iterator.

    In a coroutine, ``async for`` gives them without holding up the event loop.

    summary   how the run went, once it is over (None before): bound, ratio, imbalance, what each device did
    """

    def __init__(self, run: Any, delivery: Delivery, *, raises: bool, begin: Callable[[], None], engine: Any,
                 finish: Callable[[str, float], None], guard: ForkGuard,
                 is_bringer: Callable[[], bool]):  # fmt: skip
        self._run, self._guard = run, guard
        self._engine = engine
        self._course = _Course(run, begin, finish, guard)
        self._blocks = _blocks(delivery, self._course, guard, is_bringer)
        self._values = _Reader(_values(self._blocks, raises))
        self._delivery, self._raises = delivery, raises
        self._stream: AsyncGenerator[R, None] | None = None

    def __iter__(self) -> Iterator[R]:
        # Not self: a loop that is left must end the run, even while this handle lives on in a variable.
        self._check_reader()
        return self._values

    def __next__(self) -> R:
        self._check_reader()
        return next(self._values)

    def __aiter__(self) -> AsyncIterator[R]:
        self._guard.check()
        if inspect.getgeneratorstate(self._blocks) in (inspect.GEN_SUSPENDED, inspect.GEN_RUNNING):
            raise ConfigError(
                "some of these results were read without async, and others have been fetched with them",
                hint="read the rest in the same way",
            )
        if self._stream is None:
            course = self._course
            self._stream = _stream(self._delivery, course.begin, course.end, raises=self._raises)
        return self._stream

    def __reduce__(self) -> Any:
        raise not_sendable("the results of a map", "give a task the results themselves: list(results)")

    async def __aenter__(self) -> "Results[R]":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """``close`` for a coroutine, which it does not hold up."""
        if self._stream is not None:
            await self._stream.aclose()
        else:
            self.close()

    def indexed(self) -> Iterator[tuple[int, Any]]:
        """(index, result) pairs, in the order asked for. Failed items give their TaskError."""
        self._check_reader()
        for block in _Reader(self._blocks):
            yield from zip(block.items, block.values, strict=True)

    def _check_reader(self) -> None:
        self._guard.check()
        if self._stream is not None:
            raise ConfigError(
                "these results are read with async, and some have been fetched there",
                hint="read the rest in the same way",
            )

    @property
    def status(self) -> str:
        """done | failures (of items) | interrupted | failed, once the run is over."""
        return self._run.status

    def around(self, before: Callable[[], None], after: Callable[[str, float], None]) -> None:
        """Call ``before`` just before the run begins, and ``after`` when the caller is through with it.

        ``after`` is given the run's status and the seconds since its last result was there.
        Neither is called if it never begins. They must not hold on to this object, whose going ends the run.
        """
        self._course.before.insert(0, before)
        self._course.after.append(after)

    def blocks(self) -> Iterator[Block]:
        """The results in the groups in which they came, with the device of each."""
        self._guard.check()
        return self._blocks

    @property
    def total(self) -> int | None:
        """How many items there are; None if nobody has said so."""
        return self._run.source.total

    @property
    def summary(self) -> Summary | None:
        return self._run.summary

    def certificate(self) -> dict[str, Any]:
        """Return the certificate of the map, once it is over, for ``json.dumps``.

        It says which device did which items when, and proves the bound: ``python -m evenload.certificate``
        checks it. Raises ConfigError if the map is not over, had too many chunks, or measured nothing.
        """
        if self.summary is None:
            raise ConfigError("this map cannot be certified before it is over", hint="read all results first")
        return self._run.certificate()

    def set_policy(self, policy: str | Policy) -> None:
        """Deal the rest by another policy. Raises UnknownName or ConfigError on one that does not exist."""
        self._guard.check()
        chosen = policy_from_name(policy)
        self._engine.call(lambda: self._engine.set_policy(self._run, chosen))

    def set_balancing(self, on: bool) -> None:
        """Switch this map's balancer on or off, also while it runs. Raises ConfigError if it has none."""
        self._guard.check()
        if not self._run.has_balancer:
            raise ConfigError("there is no balancer to switch", hint="give map(balancer=LoadBalancer(), ...)")
        self._engine.call(lambda: self._engine.set_balancing(self._run, on))

    def stop(self) -> None:
        """Begin nothing new; finish and deliver what runs, then end the iteration. From any thread."""
        self._guard.check()
        self._engine.call(self._run.stop)

    def close(self) -> None:
        """Drop everything that is not delivered yet."""
        self._values.close()
        _Reader(self._blocks).close()
        self._course.end()  # if it is a coroutine that fetches them


class _Reader:
    """An iterator over a generator that says what is wrong when two threads ask it at once."""

    __slots__ = ("_inner",)

    def __init__(self, inner: Generator):
        self._inner = inner

    def __iter__(self) -> "_Reader":
        return self

    def __next__(self) -> Any:
        try:
            return next(self._inner)
        except ValueError as error:
            if _is_read_twice(error):
                raise _read_twice() from None
            raise

    def close(self) -> None:
        try:
            self._inner.close()
        except ValueError as error:
            if _is_read_twice(error):
                raise _read_twice() from None
            raise


def _is_read_twice(error: ValueError) -> bool:
    """Whether it is Python's own, of a generator that runs in another thread."""
    return type(error) is ValueError and str(error) == "generator already executing"


def _read_twice() -> ConfigError:
    return ConfigError(
        "these results are being read by another thread",
        hint="read them in one thread and hand them on through a queue.Queue, or give each thread a map of "
        "its own; `stop()` may be called from any thread",
    )


class _Course:
    """The beginning of a run and its end, each of which comes once at most.

    before  called when it begins
    after   called with its status, and the seconds since it was over, when the caller is through with it
    """

    def __init__(
        self, run: Any, begin: Callable[[], None], finish: Callable[[str, float], None], guard: ForkGuard
    ):
        self._guard = guard
        self.before: list[Callable[[], None]] = [begin]
        self.after: list[Callable[[str, float], None]] = [finish]
        self._run = run
        self._is_begun = self._is_ended = False

    def begin(self) -> None:
        if not self._is_begun:
            self._is_begun = True
            for function in self.before:
                function()

    def end(self) -> None:
        if self._is_begun and not (self._is_ended or self._guard.is_child):
            self._is_ended = True
            over_s = self._run.over_for_s()
            for function in self.after:
                function(self._run.status, over_s)


def _blocks(delivery: Delivery, course: _Course, guard: ForkGuard, is_bringer: Callable[[], bool]):
    if is_bringer():
        refuse_to_wait()
    try:
        course.begin()
        blocks = delivery.blocks()
        while True:
            guard.check()  # nobody brings results to a forked child: it would wait for ever
            if is_bringer():
                refuse_to_wait()
            block = next(blocks, None)
            if block is None:
                return
            yield block
    finally:
        course.end()


def _values(blocks: Any, raises: bool):
    try:
        for block in blocks:
            if not block.failed:
                yield from block.values
                continue
            for at, value in enumerate(block.values):
                if raises and at in block.failed:
                    raise value
                yield value
    finally:
        blocks.close()


async def _stream(
    delivery: Delivery, begin: Callable[[], None], end: Callable[[], None], *, raises: bool
) -> AsyncGenerator[Any, None]:
    """Yield what ``delivery`` gives. ``end`` is called in the end, however that comes: it may take long.

    raises  a failed item's error is raised in its turn, and not yielded
    """
    import asyncio  # takes a while, and most programs do without

    loop, news = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed, and nobody listens
            loop.call_soon_threadsafe(news.set)

    delivery.listen(tell)
    try:
        begin()
        while True:
            news.clear()
            n_given = 0
            for block in delivery.blocks_there():
                for at, value in enumerate(block.values):
                    if raises and at in block.failed:
                        raise value
                    yield value
                    n_given += 1
                    if n_given % N_AT_ONCE == 0:
                        await asyncio.sleep(0)
            if delivery.is_over:
                return
            if delivery.pump is None:
                await news.wait()
            else:  # the work is done here; between two steps of it others get their turn
                delivery.pump()
                await asyncio.sleep(0)
    finally:
        delivery.listen(None)
        await _beside(end, is_here=delivery.pump is not None)


async def _beside(function: Callable[[], None], *, is_here: bool) -> None:
    """Call ``function`` in another thread, to its end even if this is cancelled; ``is_here``: in this one."""
    if not is_here:
        import asyncio

        try:
            call = asyncio.get_running_loop().run_in_executor(None, function)
        except RuntimeError:  # the event loop ends, and has no threads any more
            pass
        else:
            return await asyncio.shield(call)
    return function()


def refuse_to_wait() -> None:
    """Raises ConfigError: the thread that brings results must not wait for them."""
    raise ConfigError(
        "this is the executor's own thread, which calls callbacks, event sinks and policies and brings the "
        "results: it would wait for ever",
        hint="submit with the future as an argument, or wait in a thread of your own",
    )
