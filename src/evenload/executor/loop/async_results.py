"""The results of a map for a coroutine: waiting for them leaves the event loop free."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any

from evenload.executor.decide.delivery import Delivery

N_AT_ONCE = 1024  # results after which others on the event loop get their turn


async def stream(
    delivery: Delivery, begin: Callable[[], None], end: Callable[[], None], *, raises: bool
) -> AsyncGenerator[Any, None]:
    """Yield what ``delivery`` gives. ``end`` is called in the end, however that comes: it may take long.

    raises  a failed item's error is raised in its turn, and not yielded
    """
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
        try:
            call = asyncio.get_running_loop().run_in_executor(None, function)
        except RuntimeError:  # the event loop ends, and has no threads any more
            pass
        else:
            return await asyncio.shield(call)
    return function()
