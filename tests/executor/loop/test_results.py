"""Results in coroutines: they leave the event loop free, and end with the coroutine that fetches them."""

import asyncio
import gc
import os
import time
from typing import Any

import pytest

import evenload
from evenload.errors import ConfigError, TaskError
from evenload.executor import Executor


def invert(x: int) -> float:
    return 1 / x


def wait_for(path: str) -> str:
    while not os.path.exists(path):
        time.sleep(0.005)
    return path


async def gathered(results: Any) -> list[Any]:
    return [value async for value in results]


def test_a_coroutine_gets_what_a_loop_gets(executor: Executor) -> None:
    async def main() -> None:
        assert await gathered(executor.map(abs, range(-3000, 0))) == list(range(3000, 0, -1))
        assert sorted(await gathered(executor.map(abs, range(50), ordered=False))) == list(range(50))
        results = executor.map(invert, [1, 0, 4], on_error="return")
        first, second, third = await gathered(results)
        assert (first, third) == (1, 0.25)
        assert isinstance(second.__cause__, ZeroDivisionError)
        assert results.status == "failures"
        assert results.summary is not None
        assert await gathered(results) == []
        assert await gathered(executor.map(abs, [])) == []

    asyncio.run(main())


def test_a_failed_item_is_raised_in_its_turn(executor: Executor) -> None:
    got = []

    async def main() -> None:
        async for value in executor.map(invert, [1, 2, 0, 4]):
            got.append(value)  # noqa: PERF401 - what came before the error is looked at

    with pytest.raises(TaskError):
        asyncio.run(main())
    assert got == [1, 0.5]
    assert list(executor.map(abs, [-5])) == [5]


def test_others_have_their_turn_while_results_are_waited_for(
    threaded: str, two_workers: Any, tmp_path: Any
) -> None:
    path = str(tmp_path / "made by another coroutine")

    async def make_file() -> None:
        open(path, "w").close()

    async def main() -> None:
        with two_workers(threaded) as executor:
            got, others = [], []
            async for value in executor.map(wait_for, [str(tmp_path), path], policy="pull"):
                got.append(value)
                if len(got) == 1:  # its turn comes only while the second result is waited for
                    others.append(asyncio.create_task(make_file()))
            assert got == [str(tmp_path), path]
            await asyncio.gather(*others)

    asyncio.run(main())


def test_cancelling_the_coroutine_ends_the_run(
    threaded: str, two_workers: Any, tmp_path: Any, until: Any
) -> None:
    go = str(tmp_path / "go")

    async def main() -> None:
        with two_workers(threaded) as executor:
            results = executor.map(wait_for, [str(tmp_path), go, go], policy="pull")
            is_there = asyncio.Event()
            got = []

            async def fetch() -> None:
                async for value in results:
                    got.append(value)
                    is_there.set()

            fetching = asyncio.create_task(fetch())
            await asyncio.wait_for(is_there.wait(), 100)
            fetching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fetching
            until(lambda: results.status == "interrupted", "the executor has heard of it")
            open(go, "w").close()
            assert got == [str(tmp_path)]
            assert await gathered(executor.map(abs, [-1])) == [1]

    asyncio.run(main())


@pytest.mark.parametrize("threaded", ["process"], indirect=True)
def test_a_loop_that_is_left_ends_the_run(threaded: str, until: Any, left_behind: Any) -> None:
    async def main() -> None:
        async with evenload.map(
            abs, range(100_000), devices="cpu*1", backend=threaded, echo=False
        ) as results:
            async for _ in results:
                break
        assert results.status == "interrupted"
        async for _ in evenload.map(abs, range(100_000), devices="cpu*1", backend=threaded, echo=False):
            break
        gc.collect()

    asyncio.run(main())
    until(lambda: not left_behind(), "no process is left")


def test_no_result_is_lost_between_one_way_to_read_and_the_other() -> None:
    async def read_on(results: Any) -> None:
        with pytest.raises(ConfigError, match="in the same way"):
            async for _ in results:
                pass

    async def begin(results: Any) -> int:
        async for result in results:
            return result
        raise AssertionError

    with Executor("cpu", backend="inline") as executor:
        results = executor.map(abs, range(9))
        assert next(results) == 0
        asyncio.run(read_on(results))
        assert list(results) == list(range(1, 9))
        results = executor.map(abs, range(9))
        assert asyncio.run(begin(results)) == 0
        for read in (next, list, lambda results: list(results.indexed())):
            with pytest.raises(ConfigError, match="in the same way"):
                read(results)
