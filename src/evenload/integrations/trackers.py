"""W&B, MLflow and TensorBoard as sinks of a run's events, in a line each.

evenload.map(fn, items, events=to_wandb(project="edits"))
evenload.map(fn, items, events=to_mlflow())
evenload.map(fn, items, events=to_tensorboard("runs/board"))

events ──► _Figures counts them ──► a thread of its own ──► the tracker
"""

import functools
import queue
import threading
import warnings
from collections.abc import Callable
from typing import Any

from evenload._optional import require
from evenload.errors import EvenloadError, reason_of
from evenload.events import Event, EventLog, RunFinished, StageFinished
from evenload.report.summary import Summary
from evenload.report.tally import Tally

LONGEST_END_S = 60.0  # that the end of a run waits for what the tracker has yet to take
Figures = dict[str, float]


def figures_of(summary: Summary) -> Figures:
    """Return the figures that a tracker gets, by name: those of the whole run, and two of each device."""
    whole = ["n_done", "n_failed", "items_per_s", "wall_s", "work_s", "bound_s", "ratio", "imbalance"]
    found = {name: getattr(summary, name) for name in whole}
    found["useful_share"] = summary.factors.share if summary.factors else None
    for one in summary.devices:
        found |= {f"n_items/{one.device}": one.n_items, f"utilisation/{one.device}": one.utilisation}
    return {f"evenload/{name}": float(value) for name, value in found.items() if value is not None}


class _Figures:
    """A sink for one run that lets a thread hand its figures on, so that a slow tracker holds up nobody.

    write    takes the figures and how many items are done; ``finish`` takes the run's status
    every_s  seconds of the run between two writes; the last, at its end, has the run's summary
    What the tracker raises is told in a warning and ends the sink; the run goes on.
    """

    def __init__(self, write: Callable[[Figures, int], Any], finish: Callable[[str], Any], every_s: float):
        self._write, self._finish, self._every_s, self._due_s = write, finish, every_s, every_s
        self._tally = Tally()
        self._error: BaseException | None = None
        self._todo: queue.Queue[Callable[[], Any] | None] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name="evenload-tracker", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        self._tally.add(event)
        now_s: float = getattr(event, "t", 0.0) or getattr(event, "stop_s", 0.0)
        if isinstance(event, StageFinished | RunFinished) or now_s >= self._due_s:
            self._due_s = now_s + self._every_s
            summary = self._tally.summary()
            self._todo.put(lambda: self._write(figures_of(summary), summary.n_done))
        if isinstance(event, RunFinished):
            self._todo.put(functools.partial(self._finish, event.status))
            self._todo.put(None)
            self._thread.join(LONGEST_END_S)
            if self._thread.is_alive():
                self._error = EvenloadError(f"the tracker took no figures for {LONGEST_END_S:.0f} s")
        if self._error is not None:
            warnings.warn(f"figures of the run are not tracked: {reason_of(self._error)}", stacklevel=2)
            raise self._error

    def _work(self) -> None:
        try:
            for step in iter(self._todo.get, None):
                step()
        except BaseException as error:  # whatever it is, it is the tracker's
            self._error = error


def to_wandb(run: Any = None, *, every_s: float = 5.0, **init: Any) -> EventLog:
    """Make the ``events=`` of one run that go to Weights & Biases, with ``evenload/n_done`` as their axis.

    run  one of yours, which stays open; by default ``wandb.init(**init)`` makes one that ends with the work
    Raises MissingExtra without wandb, and what ``wandb.init`` raises.
    """
    wandb: Any = require("wandb", extra="trackers", why="events to W&B")
    own = wandb.init(**init) if run is None else run
    own.define_metric("evenload/*", step_metric="evenload/n_done")

    def finish(status: str) -> None:
        own.summary["evenload/status"] = status
        if run is None:
            own.finish(exit_code=int(status != "done"))

    return EventLog(_Figures(lambda figures, _: own.log(figures), finish, every_s))


def to_mlflow(run_id: str | None = None, *, every_s: float = 5.0, **start: Any) -> EventLog:
    """Make the ``events=`` of one run that go to MLflow, at the step of how many items are done.

    run_id  of a run of yours, which stays open; by default ``mlflow.start_run(**start)`` makes one that ends
            with the work
    Raises MissingExtra without mlflow, and what ``start_run`` raises.
    """
    mlflow: Any = require("mlflow", extra="trackers", why="events to MLflow")
    client, own = mlflow.MlflowClient(), run_id
    if own is None:
        with mlflow.start_run(**start) as made:  # not to be the active run of the caller's thread
            own = made.info.run_id
        client.update_run(own, status="RUNNING")

    def write(figures: Figures, step: int) -> None:
        mlflow.log_metrics(figures, step=step, run_id=own)

    def finish(status: str) -> None:
        client.set_tag(own, "evenload.status", status)
        if run_id is None:
            client.set_terminated(own, "FINISHED" if status == "done" else "FAILED")

    return EventLog(_Figures(write, finish, every_s))


def to_tensorboard(folder: Any, *, every_s: float = 5.0) -> EventLog:
    """Make the ``events=`` of one run that go to TensorBoard, at the step of how many items are done.

    folder  where torch's ``SummaryWriter`` writes, or a writer of yours, which stays open
    Raises MissingExtra without torch or tensorboard.
    """
    board: Any = require("torch.utils.tensorboard", extra="trackers", why="events to TensorBoard")
    is_writer = hasattr(folder, "add_scalar")
    writer = folder if is_writer else board.SummaryWriter(str(folder))

    def write(figures: Figures, step: int) -> None:
        for name, value in figures.items():
            writer.add_scalar(name, value, step)

    return EventLog(_Figures(write, lambda _: writer.flush() if is_writer else writer.close(), every_s))
