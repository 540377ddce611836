"""Single calls with futures (``Executor.submit``), as a run that never ends by itself."""

import functools
import logging
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from evenload.errors import ConfigError, ExecutorClosed, quoted
from evenload.executor.decide.delivery import Block, Sink
from evenload.executor.decide.source import Source
from evenload.executor.run.dependencies import error_of_argument, futures_in, with_results
from evenload.executor.task.item_context import CallerContext

Indices = range | tuple[int, ...]


class Call(NamedTuple):
    """A call as it was submitted, and as a worker gets it.

    name       of the function, for messages
    function   itself or, for another process, its bytes and buffers
    arguments  positional ones and those with names
    caller     what it finds of the context in which it was submitted
    """

    name: str
    function: Callable[..., Any] | tuple[bytes, list]
    arguments: tuple[tuple, dict[str, Any]]
    caller: CallerContext | None = None

    def make(self) -> Any:
        """In the worker: make the call."""
        if self.caller is not None:
            self.caller.enter()
        fn: Any = self.function
        if type(fn) is tuple:
            body, buffers = fn
            fn = pickle.loads(body, buffers=buffers) if buffers else _function(body)
        args, kwargs = self.arguments
        return fn(*args, **kwargs)


@dataclass(slots=True)
class _Waiting:
    """A call that waits for ``n_missing`` of the futures among its arguments."""

    call: Call
    n_missing: int


class CallSource(Source):
    """Calls in the order in which they were submitted, or got their last argument.

    ``add`` and ``end`` are for the executor's thread; ``soon`` has something called there.

    why_over   why no call is taken any more, None as long as they are
    """

    is_apart = True

    def __init__(self, soon: Callable[[Callable[[], None]], None]) -> None:
        self.futures: dict[int, Future] = {}
        self.why_over: BaseException | None = None
        self.is_over = threading.Event()
        self._afterwards: list[Callable[[], None]] = []
        self._calls: dict[int, Call] = {}
        self._soon = soon
        self._waiting: dict[Future, _Waiting] = {}
        self._is_closing = False

    def add(self, call: "Call", future: Future) -> None:
        """Take a call, once the futures among its arguments are done.

        If one of them fails or is cancelled, so does ``future``; and if the run is over, it fails at once.
        """
        if self.why_over is not None:
            return _fail(future, self.why_over)
        try:
            self._await_arguments(call, future)
        except (Exception, SystemExit) as error:
            self._refuse(call, future, error)

    def _await_arguments(self, call: "Call", future: Future) -> None:
        arguments = futures_in(call.arguments)
        if not arguments:
            return self._take_in(call, future)
        self._waiting[future] = _Waiting(call, len(arguments))
        for argument in arguments:
            argument.add_done_callback(partial(self._tell, future))
        future.add_done_callback(partial(self._tell, future))  # it may be cancelled

    def _tell(self, future: Future, done: Future) -> None:
        """From any thread: ``done`` is an argument of the call of ``future``, or that itself."""
        self._soon(partial(self._on_done, future, done))

    def _on_done(self, future: Future, done: Future) -> None:
        waiting = self._waiting.get(future)
        if waiting is None:
            return
        try:
            self._count_down(waiting, future, done)
        except (Exception, SystemExit) as error:
            self._refuse(waiting.call, future, error)

    def _count_down(self, waiting: _Waiting, future: Future, done: Future) -> None:
        waiting.n_missing -= 1
        if future.done() or done.cancelled():
            _cancel(future)
            self._forget(future)
        elif done.exception() is not None:
            _fail(future, error_of_argument(done, waiting.call.name))
            self._forget(future)
        elif not waiting.n_missing:
            try:
                arguments = with_results(waiting.call.arguments)
                self._take_in(waiting.call._replace(arguments=arguments), future)
            except RecursionError:
                name = waiting.call.name
                _fail(future, ConfigError(f"the arguments of {name} are nested too deep for futures in them"))
            self._forget(future)

    def _refuse(self, call: "Call", future: Future, error: BaseException) -> None:
        """Fail a call whose arguments cannot be read: they raise, or somebody changes them meanwhile."""
        if not future.done():
            refusal = ConfigError(
                f"the arguments of {call.name} cannot be read: {type(error).__name__}: {quoted(error)}",
                hint="leave lists and dicts as they are until the call has begun, and give ordinary futures",
            )
            refusal.__cause__ = error
            _fail(future, refusal)
        if future in self._waiting:
            self._forget(future)

    def _forget(self, future: Future) -> None:
        """Forget a call that waits no longer."""
        del self._waiting[future]
        self.is_ended = self._is_closing and not self._waiting

    def _take_in(self, call: "Call", future: Future) -> None:
        self._calls[self.n_ready] = call
        self.futures[self.n_ready] = future
        self.n_ready += 1

    def cancel(self) -> None:
        for future in self.unfinished():
            _fulfil(future.cancel)

    def unfinished(self) -> tuple[Future, ...]:
        """The futures without a result, also of calls that wait for their arguments."""
        return (*self.futures.values(), *self._waiting)

    def end(self) -> None:
        """Take no further call; those that wait for arguments are still made."""
        self._is_closing = True
        self.is_ended = not self._waiting

    def then(self, function: Callable[[], None]) -> None:
        """Have ``function`` called when every future has its result. Only from the executor's thread."""
        if self.is_over.is_set():
            return function()
        self._afterwards.append(function)

    def set_over(self) -> None:
        """Every future has its result."""
        self.futures.clear()
        self._waiting.clear()
        self.is_over.set()
        for function in self._afterwards:
            function()

    def claim(self, items: Indices) -> bool:
        (item,) = items
        future = self.futures[item]
        if future.running() or future.set_running_or_notify_cancel():
            return True
        self.release(items)
        del self.futures[item]
        return False

    def take(self, items: Indices) -> list[Any]:
        return [self._calls[item] for item in items]

    def release(self, items: Indices) -> None:
        for item in items:
            self._calls.pop(item, None)


class FutureSink(Sink):
    """A sink that fulfils the futures of ``source``, and tells it when nothing more is to come."""

    def __init__(self, source: CallSource):
        self._source = source

    def put(self, block: Block) -> None:
        self.n_taken += len(block)
        for at, item in enumerate(block.items):
            future = self._source.futures.pop(item)
            if at in block.failed:
                _fulfil(future.set_exception, block.values[at])
            else:
                _fulfil(future.set_result, block.values[at])

    def close(self, error: BaseException | None = None) -> None:
        self._source.why_over = error or ExecutorClosed("the executor is closed", hint="make a new one")
        for future in self._source.unfinished():
            if future.running():
                _fulfil(future.set_exception, self._source.why_over)
            elif error is not None:
                _fail(future, error)
            else:
                _cancel(future)
        self._source.set_over()


def _fail(future: Future, error: BaseException) -> None:
    if future.set_running_or_notify_cancel():
        _fulfil(future.set_exception, error)


def _cancel(future: Future) -> None:
    """Cancel a future that does not run, and tell those who wait for it."""
    _fulfil(future.cancel)
    _fulfil(future.set_running_or_notify_cancel)


def _fulfil(settle: Callable[..., Any], *value: Any) -> None:
    """Settle a future. Its callbacks run here and may raise; ``concurrent.futures`` lets SystemExit pass."""
    try:
        settle(*value)
    except BaseException:
        logging.getLogger("concurrent.futures").exception("a future's callback raised")


class AfterInitializer:
    """A worker's way to run calls, built once its initializer has been called."""

    def __init__(self, initializer: Callable[[], Any]):
        initializer()

    def __call__(self, call: Call) -> Any:
        return call.make()


@functools.lru_cache(maxsize=128)
def _function(body: bytes) -> Callable:
    return pickle.loads(body)
