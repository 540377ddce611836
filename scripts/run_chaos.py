"""Run random programs under random faults, and hold evenload to its promises after each.

    python scripts/run_chaos.py --minutes 10            programs of new seeds; stops at the first violation
    python scripts/run_chaos.py --seed 7                one program again, as a violation asks for
    python scripts/run_chaos.py --first 1000 --faults 10000 --jobs 3 --record

A program is drawn from its seed alone; when a signal comes from outside depends on the machine, too, so a
rare violation may need several repetitions. ``--record`` writes the counts to
``benchmarks/results/chaos.json``. SIGINT and SIGTERM end the programs that run, which are not counted then.
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import count, repeat
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TOP / "tests"), str(TOP / "benchmarks")]

from chaos.runner import Outcome, Stopped, run_program  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, help="run this program only")
    parser.add_argument("--repeat", type=int, default=1, help="so often, with --seed")
    parser.add_argument("--minutes", type=float, help="begin no program after so long")
    parser.add_argument("--faults", type=int, help="go on until so many have happened")
    parser.add_argument("--first", type=int, default=int(time.time()), help="the first seed")
    n_jobs = min(4, os.cpu_count() or 1)
    parser.add_argument("--jobs", type=int, default=n_jobs, help="programs at a time")
    parser.add_argument("--keep", type=Path, default=Path("chaos-kept"), help="where evidence is kept")
    parser.add_argument("--go-on", action="store_true", help="do not stop at a violation")
    parser.add_argument("--record", action="store_true", help="write the counts as a result")
    options = parser.parse_args()
    campaign = Campaign(options)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: campaign.stop.set())
    campaign.run()
    outcomes = campaign.outcomes
    faults = sum((outcome.faults for outcome in outcomes), Counter())
    n_bad = sum(bool(outcome.violations) for outcome in outcomes)
    print(f"{len(outcomes)} programs, {faults.total()} faults, {n_bad} programs with violations")
    if options.record and outcomes:
        write(campaign, faults)
    sys.exit(130 if campaign.stop.is_set() else 1 if n_bad else 0)


class Campaign:
    """Programs that run one after another, or several at a time, until it is enough."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.outcomes: list[Outcome] = []
        self.stop = threading.Event()
        self.began_s = time.monotonic()
        self.most_load = 0.0

    def run(self) -> None:
        seeds = self._seeds()
        with ThreadPoolExecutor(self.options.jobs) as threads:
            running: set[Future[Outcome]] = set()
            while True:
                while len(running) < self.options.jobs and self._goes_on():
                    if (seed := next(seeds, None)) is None:
                        break
                    running.add(threads.submit(run_program, seed, self.options.keep, self.stop))
                if not running:
                    return
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for one in done:
                    self._take(one)

    def _seeds(self) -> Iterator[int]:
        options = self.options
        return count(options.first) if options.seed is None else repeat(options.seed, options.repeat)

    def _goes_on(self) -> bool:
        options = self.options
        if self.stop.is_set():
            return False
        if options.seed is not None:
            return True
        n_faults = sum(outcome.faults.total() for outcome in self.outcomes)
        is_late = time.monotonic() > self.began_s + 60 * (options.minutes or float("inf"))
        is_broken = any(outcome.violations for outcome in self.outcomes) and not options.go_on
        return not is_late and not is_broken and n_faults < (options.faults or float("inf"))

    def _take(self, one: Future[Outcome]) -> None:
        """Keep what came of a program, and print it."""
        try:
            outcome = one.result()
        except Stopped:
            return
        self.outcomes.append(outcome)
        self.most_load = max(self.most_load, os.getloadavg()[0])
        print(f"seed {outcome.seed}: {outcome.faults.total()} faults, {outcome.n_items} tasks, "
              f"{outcome.n_lives} drivers", flush=True)  # fmt: skip
        for violation in outcome.violations:
            print(f"  VIOLATION {violation}", flush=True)
        if outcome.violations:
            print(f"  again: CHAOS_SEED={outcome.seed} make chaos", flush=True)


def write(campaign: Campaign, faults: Counter[str]) -> None:
    from record import record

    outcomes = sorted(campaign.outcomes, key=lambda outcome: outcome.seed)
    rows = [{"fault": name, "happened": n} for name, n in sorted(faults.items())]
    path = record(
        "chaos",
        rows,
        is_of_speed=False,
        n_programs=len(outcomes),
        first_seed=outcomes[0].seed,
        last_seed=outcomes[-1].seed,
        n_faults=faults.total(),
        n_tasks=sum(outcome.n_items for outcome in outcomes),
        n_drivers=sum(outcome.n_lives for outcome in outcomes),
        most_load=round(campaign.most_load, 1),
        violations={str(one.seed): [*map(brief, one.violations)] for one in outcomes if one.violations},
        seconds=round(time.monotonic() - campaign.began_s),
        jobs=campaign.options.jobs,
        commit=commit(),
    )
    page = json.loads(path.read_text(encoding="utf-8"))
    told = [word for word in sys.argv[1:] if word not in ("--keep", str(campaign.options.keep))]
    page["command"] = shlex.join(["python", "scripts/run_chaos.py", *told])
    path.write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def brief(violation: str) -> str:
    """A violation in one line: of a traceback the error only."""
    first, *rest = violation.strip().splitlines()
    errors = [line for line in rest if not line.startswith((" ", "Traceback"))]
    return f"{first.partition(': ')[0]}: {errors[-1]}"[:200] if errors else first[:200]


def commit() -> str:
    """The commit that was tried; with "+" if files differ from it."""
    told = subprocess.run(
        ["git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"],
        cwd=TOP, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return told.stdout.strip()


if __name__ == "__main__":
    main()
