"""Run items on a loaded model: one by one, several at once on lanes or an event loop, or as a batch.

A batch must give the bytes that its items give one by one, unless the job allows otherwise: in each worker
the first batch of a key (other shapes, other kernels) is done both ways and compared.
"""

import asyncio
import contextlib
import functools
import gc
import queue
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evenload._waiting import Meter
from evenload.events import json_text
from evenload.executor.task.failure import Failure, is_memory_error
from evenload.pipeline.artifacts import staged_path
from evenload.pipeline.dispatch.worker_protocol import OrderOutcome, StageTask, TaskInputs
from evenload.pipeline.event_loop import LoopShare
from evenload.pipeline.stage import StageOutput, StageSetup
from evenload.pipeline.stage_runner import StageRunner
from evenload.pipeline.worker.file_saver import FileSaver, PieceSender


class LoadedStage:
    """A loaded model. Each lane has its own scheduler state and thread; an async stage has one event loop.

    n_lanes  items at once, if the stage can have several
    over     queue of outcomes that come later: those of lanes, and of items whose files were saved
    """

    def __init__(
        self,
        runner: StageRunner,
        stage: int,
        n_lanes: int,
        saver: FileSaver | PieceSender,
        over: "queue.SimpleQueue[OrderOutcome]",
    ):
        self.runner = runner
        self._stage, self._saver, self._over = stage, saver, over
        self._may_batch = True  # as far as it is known
        self._compared: set[str] = set()  # keys of batches that gave the bytes of single items
        self._lanes: queue.SimpleQueue[StageRunner] = queue.SimpleQueue()
        self._lanes.put(runner)
        self._n_free = asyncio.Semaphore(n_lanes)
        self._on_loop: dict[StageTask, tuple[TaskInputs, LoopShare, float]] = {}
        self._is_async = n_lanes > 1 and runner.is_async
        for _ in range(0 if self._is_async else n_lanes - 1):
            lane = runner.lane()
            if lane is not None:
                self._lanes.put(lane)
        self.n_lanes = n_lanes if self._is_async else self._lanes.qsize()

    def key_of(self, one: TaskInputs) -> OrderOutcome:
        """Say what must be equal in the item's batch; where that fails, it runs alone."""
        outcome = OrderOutcome("keyed", self._stage, one.task)
        try:
            outcome.key = self.runner.key(one.values, one.item)
        except Exception as error:
            outcome.error = described_error(error)
        return outcome

    def run(self, tasks: Sequence[TaskInputs], key: str = "") -> list[OrderOutcome]:
        """Run the items, which are equal in ``key``; returns the outcomes there are by now, the others go
        to ``over``.
        """
        if self._is_async:
            for one in tasks:
                self.runner.loop.begin(functools.partial(self._run_on_loop, one))
            return []
        if self.n_lanes > 1:
            for one in tasks:
                threading.Thread(target=self._run_on_lane, args=(one,), daemon=True).start()
            return []
        if len(tasks) > 1:
            return self._run_batch(tasks, key)
        return [self._run_one(self.runner, tasks[0])]

    def adopt(self, setup: StageSetup) -> bool:
        """Go on with the setup of another job's stage, if that needs the same model; else return False."""
        if setup.python is not None or _model_setup(setup) != _model_setup(self.runner.setup):
            return False
        for _ in range(self._lanes.qsize()):
            lane = self._lanes.get()
            lane.setup = setup
            self._lanes.put(lane)
        self.runner.setup = setup
        self._may_batch = True
        self._compared.clear()  # other arguments may give other bytes
        return True

    def close(self) -> None:
        """Close the stage; an error is only printed, as the stage's results are all there."""
        try:
            self.runner.close()
        except Exception as error:
            text = f"{self.runner.setup.stage}: close() raised {type(error).__name__}: {error}"
            sys.stderr.write(text + "\n")

    def _run_on_lane(self, one: TaskInputs) -> None:
        lane, began_s = self._lanes.get(), time.monotonic()
        try:
            outcome = self._run_one(lane, one)
        except BaseException as error:  # a thread's SystemExit is nobody's; its item must have an end
            outcome = timed(self._failed(one, error), began_s)
        self._lanes.put(lane)
        if outcome.kind != "made":  # else it is in ``over`` already
            self._over.put(outcome)

    async def _run_on_loop(self, one: TaskInputs) -> None:
        """Run an item of an async stage: while it does not hold the loop, it waits."""
        async with self._n_free:
            share = LoopShare(self.runner.call_async(one.values, one.item, one.place))
            made, began_s, limit = None, time.monotonic(), one.limit
            self._on_loop[one.task] = one, share, began_s
            timer = asyncio.timeout(None if limit is None else limit.seconds)
            try:
                async with timer:
                    made = await share
            except BaseException as error:
                is_late = timer.expired() and isinstance(error, TimeoutError)
                outcome = self._late(one) if is_late else self._failed(one, error)
            else:
                outcome = OrderOutcome("done", self._stage, one.task, made.outputs, made.files, made.reads)
        if self._on_loop.pop(one.task, None) is None:
            return  # it held the loop for so long that it was given up
        timed(outcome, began_s)
        outcome.waited_s = max(0.0, outcome.stop_s - began_s - share.held_s)
        if made is None or self._saved(one, outcome, made).kind != "made":
            self._over.put(outcome)

    def given_up(self) -> list[OrderOutcome]:
        """Give up the item that holds the event loop beyond its time limit: nothing can take it off there."""
        outcomes, now = [], time.monotonic()
        for one, share, began_s in tuple(self._on_loop.values()):
            since_s, limit = share.since_s, one.limit
            is_stuck = since_s is not None and limit is not None and now - since_s > limit.seconds
            if is_stuck and self._on_loop.pop(one.task, None) is not None:
                outcome = self._late(one, ": it holds the event loop and never awaits")
                outcome.must_replace = True
                outcomes.append(timed(outcome, began_s))
        return outcomes

    def _late(self, one: TaskInputs, how: str = "") -> OrderOutcome:
        assert one.limit is not None
        text = f"the item ran longer than {one.limit.text} and was ended{how}"
        return OrderOutcome("failed", self._stage, one.task, error=("TaskTimeout", text, ""))

    def _run_one(self, runner: StageRunner, one: TaskInputs) -> OrderOutcome:
        made, outcome = self._called(runner, one)
        return outcome if made is None else self._saved(one, outcome, made)

    def _called(self, runner: StageRunner, one: TaskInputs) -> tuple[StageOutput | None, OrderOutcome]:
        """Run an item; returns what it made, None if it failed, and the outcome."""
        began_s, made, meter = time.monotonic(), None, Meter()
        try:
            # Items on lanes run at once in one process: nobody can say what was done for which.
            with contextlib.nullcontext() if self.n_lanes > 1 else meter:
                made = runner.call(one.values, one.item, one.place)
        except Exception as error:
            outcome = self._failed(one, error)
        else:
            outcome = OrderOutcome("done", self._stage, one.task, made.outputs, made.files, made.reads)
        return made, timed(outcome, began_s, meter)

    def _failed(self, one: TaskInputs, error: BaseException) -> OrderOutcome:
        kind = "memory" if is_memory_error(error) else "failed"
        outcome = OrderOutcome(kind, self._stage, one.task, error=described_error(error))
        error.__traceback__ = None  # its frames hold the tensors that did not fit
        if kind == "memory":
            free_cached_memory()
        return outcome

    def _saved(self, one: TaskInputs, outcome: OrderOutcome, made: StageOutput) -> OrderOutcome:
        """Return ``outcome``, or an interim outcome "made" while its files are being written."""
        contents = self._contents(made)
        if not contents:
            return outcome
        interim = OrderOutcome(
            "made", self._stage, outcome.task, start_s=outcome.start_s, stop_s=outcome.stop_s
        )
        interim.peak_bytes = outcome.peak_bytes
        if self.n_lanes > 1:
            self._over.put(interim)  # before the outcome itself can be there

        def then(fault: Exception | None) -> None:
            self._over.put(outcome if fault is None else outcome.failed(described_error(fault)))

        if isinstance(self._saver, PieceSender):
            assert outcome.task is not None
            files = [content for _, content in contents]
            self._saver.send(outcome.task, dict(zip(made.files, files, strict=True)), then)
        else:
            if one.staged is not None:
                contents = [(Path(staged_path(path, one.staged)), content) for path, content in contents]
            self._saver.save(contents, then)
        return interim

    def _contents(self, made: StageOutput) -> list[tuple[Path, bytes]]:
        """Return the files that are left to be saved; those of another interpreter are on its own disk."""
        if made.contents or not isinstance(self._saver, PieceSender):
            return made.contents
        paths = [self.runner.setup.run_folder / str(made.outputs[name]) for name in made.files]
        contents = [(path, path.read_bytes()) for path in paths]
        for path in paths:
            path.unlink()
        return contents

    # --- batches ----------------------------------------------------------------------------------

    def _run_batch(self, tasks: Sequence[TaskInputs], key: str) -> list[OrderOutcome]:
        if not self._may_batch or not self.runner.can_batch:
            outcomes = [self._run_one(self.runner, one) for one in tasks]
            outcomes[0].how = "differs" if self.runner.can_batch else "refused"
            return outcomes
        began_s, meter = time.monotonic(), Meter()
        try:
            with meter:
                mades = self.runner.call_batch([(one.values, one.item, one.place) for one in tasks])
        except Exception as error:
            first = timed(self._failed(tasks[0], error), began_s)
            if first.kind == "memory":
                return [
                    first,
                    *(timed(OrderOutcome("again", self._stage, one.task), began_s) for one in tasks[1:]),
                ]
            return [self._run_one(self.runner, one) for one in tasks]  # to find the item that fails
        took_s = (time.monotonic() - began_s) / len(tasks)
        if not self.runner.setup.may_change_bits and key not in self._compared:
            self._compared.add(key)
            return self._compare(tasks, mades, took_s)
        return self._of_batch(tasks, mades, began_s, took_s, meter)

    def _of_batch(
        self,
        tasks: Sequence[TaskInputs],
        mades: Sequence[StageOutput | Exception],
        began_s: float,
        took_s: float,
        meter: Meter,
    ) -> list[OrderOutcome]:
        """Return outcomes as if the items had run one after the other, each in an equal share of the time."""
        outcomes = []
        for number, (one, made) in enumerate(zip(tasks, mades, strict=True)):
            if isinstance(made, Exception):
                if self.runner.setup.retries and not is_memory_error(made):
                    outcomes.append(self._run_one(self.runner, one))
                    continue
                outcome = self._failed(one, made)
            else:
                outcome = OrderOutcome("done", self._stage, one.task, made.outputs, made.files, made.reads)
            timed(outcome, began_s, meter, n_items=len(tasks))
            outcome.start_s = began_s + number * took_s
            outcome.stop_s = outcome.start_s + took_s
            outcomes.append(outcome if isinstance(made, Exception) else self._saved(one, outcome, made))
        return outcomes

    def _compare(
        self, tasks: Sequence[TaskInputs], mades: Sequence[StageOutput | Exception], took_s: float
    ) -> list[OrderOutcome]:
        """Run the items of a batch one by one as well, and note whether the bytes are equal.

        The results of the single runs are those that count.
        """
        began_s = time.monotonic()
        outcomes, is_equal = [], True
        for one, together in zip(tasks, mades, strict=True):
            alone, outcome = self._called(self.runner, one)
            if alone is None or isinstance(together, Exception):
                is_equal = is_equal and alone is None and isinstance(together, Exception)
            else:
                texts = [json_text(m[:2], sort_keys=True, allow_nan=True) for m in (alone, together)]
                is_same = alone[:2] == together[:2] or texts[0] == texts[1]  # NaN equals NaN as text alone
                is_equal = is_equal and is_same
            outcomes.append(outcome if alone is None else self._saved(one, outcome, alone))
        self._may_batch = is_equal
        alone_s = (time.monotonic() - began_s) / len(tasks)
        faster = f", {alone_s / took_s:.1f}x as fast" if took_s > 0 else ""
        outcomes[0].how = f"equal{faster}" if is_equal else "differs"
        return outcomes


def _model_setup(setup: StageSetup) -> StageSetup:
    """Keep of a setup what the stage's constructor depends on; built-in stages take no seed from the job."""
    seed = 0 if setup.target.module.startswith("evenload.pipeline.stages.") else setup.seed
    return replace(setup, run_folder=Path(), call={}, outputs={}, retries=0, seed=seed)


def timed(
    outcome: OrderOutcome, began_s: float, meter: Meter | None = None, n_items: int = 1
) -> OrderOutcome:
    """Set the outcome's times, from ``began_s`` to now, what ``meter`` measured, and the peak of memory.

    n_items  that were measured together, each of which has an equal share
    """
    outcome.start_s, outcome.stop_s = began_s, time.monotonic()
    if meter is not None:
        outcome.waited_s = meter.waited_s / n_items
        outcome.cpu_s = None if meter.cpu_s is None else meter.cpu_s / n_items
    outcome.peak_bytes = _peak_bytes()
    return outcome


def described_error(error: BaseException) -> tuple[str, str, str]:
    """Return the error's type name, message and traceback."""
    failure = Failure.of(error, travels=False)
    return failure.type_name, failure.message, failure.traceback


def free_cached_memory() -> None:
    """Collect garbage and give the GPU's cached memory back to the driver."""
    gc.collect()
    if (cuda := used_cuda()) is not None:
        cuda.empty_cache()


def used_cuda() -> Any:
    """Return ``torch.cuda`` if this process has imported torch and there is a GPU; else None."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_available() else None


def _peak_bytes() -> int | None:
    if (cuda := used_cuda()) is not None:
        return max(int(cuda.max_memory_reserved(at)) for at in range(cuda.device_count()))
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
