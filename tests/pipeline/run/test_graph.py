"""Random graphs of stages give what a plain loop gives, whatever fails, is filtered or is broken off."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from pipeline.run.random_graphs import (
    EDITS,
    Step,
    document,
    edited,
    plain_item,
    random_steps,
    rows_of,
    write_graph,
)

from evenload.pipeline import Pipeline
from evenload.report.source import open_run
from evenload.report.tally import summarise


def check_a_graph(folder: Path, seed: int, n_items: int, n_stops: int, edits: Sequence[str]) -> None:
    """Runs that are broken off, and then edits, in one folder; all that was made is in a cache, too."""
    rng = random.Random(seed)
    steps = random_steps(rng)
    rows = rows_of_column(n_items)
    stops = [rng.randint(1, 3 * n_items) for _ in range(n_stops)]
    run_and_compare(folder, steps, rows, stops)
    check_numbers(folder / "run")
    for what in edits:
        steps, rows, names, ids = edited(rng, what, steps, rows)
        stops = [rng.randint(1, n_items)] if rng.random() < 0.3 else []
        fails = {step.name for step in steps if step.fails}  # as nobody knows what a failed call has read
        calls = [call.split() for call in run_and_compare(folder, steps, rows, stops) if call[0] not in fails]
        assert {name for name, *_ in calls} <= names
        assert {item.partition("/")[0] for _, item, *_ in calls} <= ids


def rows_of_column(n_items: int) -> list[dict[str, Any]]:
    return [{"id": f"r{n}", "column": n * n} for n in range(n_items)]


def run_and_compare(folder: Path, steps: list[Step], rows: list[dict], stops: list[int]) -> list[str]:
    """Run the job in its folder; returns the calls. Again there are none; elsewhere, but those that fail."""
    write_graph(folder, steps, rows)
    pipeline = Pipeline.from_yaml(folder / "job.yaml")
    wanted = [plain_item(steps, row) for row in rows]

    def run(out: str, stop_after: int = 0) -> list[str]:
        (folder / "calls").write_text("")
        if stop_after:
            (folder / "stop_after").write_text(str(stop_after))
        pipeline.run(out=folder / out, backend="inline", cache=folder / "cache")
        (folder / "stop_after").unlink(missing_ok=True)
        assert stop_after or rows_of(folder / out) == wanted, yaml.safe_dump(document(steps))
        return (folder / "calls").read_text().splitlines()

    calls = [call for n_calls in (*stops, 0) for call in run("run", n_calls)]
    assert not any(one["n_to_do"] for one in pipeline.plan(out=folder / "run").kept)
    assert not run("run")
    assert {call.split()[0] for call in run("other")} <= {step.name for step in steps if step.fails}
    shutil.rmtree(folder / "other")
    return calls


def check_numbers(run: Path) -> None:
    """The summary of a run that was broken off and resumed is that of its report."""
    said = json.loads((run / "summary.json").read_text())
    shown = json.loads(json.dumps(summarise(open_run(run)).to_json()))
    assert {name: said[name] for name in shown if name != "counts"} == {
        name: value for name, value in shown.items() if name != "counts"
    }


@pytest.mark.parametrize(
    ("seed", "edits"), [(0, EDITS[:2]), (10, EDITS[2:4]), (21, EDITS[4:])]
)  # samples; parts in parts; parts that are lost
def test_a_random_graph_gives_what_a_plain_loop_gives(
    tmp_path: Path, seed: int, edits: Sequence[str]
) -> None:
    check_a_graph(tmp_path, seed, n_items=3, n_stops=1, edits=edits)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_random_graphs(tmp_path: Path, seed: int) -> None:
    edits = random.Random(seed).choices(EDITS, k=6)
    check_a_graph(tmp_path, seed, n_items=12, n_stops=4, edits=edits)


def check_kills(folder: Path, seed: int, n_items: int, n_lives: int, popen: Any, last: list[str]) -> None:
    """SIGKILL of the driver, and of one worker in each of its lives, in the middle of random calls.

    Who is idle at the end runs copies of what others have.
    """
    rng = random.Random(seed)
    steps = random_steps(rng)
    rows = rows_of_column(n_items)
    write_graph(folder, steps, rows, copies=True)
    killed, more = [sys.executable, "-m", "evenload"], ["run", "job.yaml", "-o", "run", "-q"]
    statuses = []
    for number in range(n_lives):
        for order in folder.glob("kill_*"):
            order.unlink()
        with (folder / "said").open("ab") as said:
            command = [*(last if number == n_lives - 1 else killed), *more]
            process = popen(command, stdout=said, stderr=said, cwd=folder)
            if number < n_lives - 1:
                (folder / "kill_worker").write_text(f"{rng.randint(0, n_items)} 0")
                (folder / "kill_driver").write_text(f"{rng.randint(n_items, 2 * n_items)} {process.pid}")
            statuses.append(process.wait(500))
    assert set(statuses) <= {0, 1, -9}, (folder / "said").read_text()
    assert statuses[-1] in (0, 1)
    assert rows_of(folder / "run") == [plain_item(steps, row) for row in rows], yaml.safe_dump(
        document(steps)
    )
    assert not list((folder / "run" / "outputs").rglob("*.tmp"))
    check_numbers(folder / "run")


def test_a_killed_graph_goes_on_to_the_bytes_of_a_plain_loop(
    tmp_path: Path, popen: Callable[..., subprocess.Popen], evenload: list[str]
) -> None:
    check_kills(tmp_path, 3, n_items=4, n_lives=2, popen=popen, last=evenload)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(300, 400))
def test_many_killed_graphs(tmp_path: Path, seed: int, popen: Any, evenload: list[str]) -> None:
    check_kills(tmp_path, seed, n_items=8, n_lives=4, popen=popen, last=evenload)
