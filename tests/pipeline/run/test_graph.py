"""Random graphs of stages give what a plain loop gives, whatever fails, is filtered or is broken off."""

import copy
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pipeline.run.random_graphs import (
    Step,
    before,
    document,
    plain_item,
    random_steps,
    rows_of,
    write_graph,
)

from evenload.pipeline import Pipeline
from evenload.report.source import open_run
from evenload.report.tally import summarise


def check_a_graph(folder: Path, seed: int, n_items: int, n_stops: int) -> None:
    rng = random.Random(seed)
    steps = random_steps(rng)
    rows = write_graph(folder, steps, n_items)
    wanted = [plain_item(steps, row) for row in rows]
    for _ in range(n_stops):
        (folder / "stop_after").write_text(str(rng.randint(1, 3 * n_items)))
        Pipeline.from_yaml(folder / "job.yaml").run(out=folder / "run", backend="inline")
    (folder / "stop_after").unlink(missing_ok=True)
    Pipeline.from_yaml(folder / "job.yaml").run(out=folder / "run", backend="inline")
    assert rows_of(folder / "run") == wanted, yaml.safe_dump(document(steps))
    (folder / "calls").write_text("")
    Pipeline.from_yaml(folder / "job.yaml").run(out=folder / "run", backend="inline")
    assert (folder / "calls").read_text() == ""  # all of it is known
    check_numbers(folder / "run")
    check_an_edit(folder, rng, steps, rows)


def check_numbers(run: Path) -> None:
    """The summary of a run that was broken off and resumed is that of its report."""
    said = json.loads((run / "summary.json").read_text())
    shown = json.loads(json.dumps(summarise(open_run(run)).to_json()))
    assert {name: said[name] for name in shown if name != "counts"} == {
        name: value for name, value in shown.items() if name != "counts"
    }


def check_an_edit(folder: Path, rng: random.Random, steps: list[Step], rows: list[dict[str, Any]]) -> None:
    """Another parameter of one stage has only that one done again, and those that need it."""
    edited = rng.randrange(len(steps))
    (folder / "calls").unlink()
    again = copy.deepcopy(steps)
    again[edited].fails = 7
    (folder / "job.yaml").write_text(yaml.safe_dump(document(again)))
    said = Pipeline.from_yaml(folder / "job.yaml").plan(out=folder / "run")
    to_do = {one["stage"]: one["n_to_do"] for one in said.kept}
    after = {steps[n].name for n in range(len(steps)) if edited in before(steps, n)} | {steps[edited].name}
    assert {name for name, n in to_do.items() if n} <= after
    Pipeline.from_yaml(folder / "job.yaml").run(out=folder / "run", backend="inline")
    assert rows_of(folder / "run") == [plain_item(again, row) for row in rows]
    calls = (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []
    assert {call.split()[0] for call in calls} <= after


@pytest.mark.parametrize("seed", [0, 10, 21])  # samples; parts in parts; parts that are lost
def test_a_random_graph_gives_what_a_plain_loop_gives(tmp_path: Path, seed: int) -> None:
    check_a_graph(tmp_path, seed, n_items=3, n_stops=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_random_graphs(tmp_path: Path, seed: int) -> None:
    check_a_graph(tmp_path, seed, n_items=12, n_stops=4)


def check_kills(folder: Path, seed: int, n_items: int, n_lives: int, popen: Callable[..., Any]) -> None:
    """SIGKILL of the driver, and of one worker in each of its lives, in the middle of random calls.

    Who is idle at the end runs copies of what others have.
    """
    rng = random.Random(seed)
    steps = random_steps(rng)
    rows = write_graph(folder, steps, n_items, copies=True)
    command = [sys.executable, "-m", "evenload", "run", "job.yaml", "-o", "run", "-q"]
    statuses = []
    for number in range(n_lives):
        for order in folder.glob("kill_*"):
            order.unlink()
        with (folder / "said").open("ab") as said:
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
    tmp_path: Path, popen: Callable[..., subprocess.Popen]
) -> None:
    check_kills(tmp_path, 3, n_items=4, n_lives=2, popen=popen)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(300, 400))
def test_many_killed_graphs(tmp_path: Path, seed: int, popen: Callable[..., subprocess.Popen]) -> None:
    check_kills(tmp_path, seed, n_items=8, n_lives=4, popen=popen)
