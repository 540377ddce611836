"""Run random programs under random faults, and hold evenload to its promises after each.

    python scripts/run_chaos.py --minutes 10            programs of new seeds; stops at the first violation
    python scripts/run_chaos.py --seed 7                one program again, as a violation asks for
    python scripts/run_chaos.py --first 1000 --faults 10000 --record

A program is drawn from its seed alone; when a signal comes from outside depends on the machine, too, so a
rare violation may need several repetitions. ``--record`` writes the counts to
``benchmarks/results/chaos.json``.
"""

import argparse
import json
import shlex
import sys
import time
from collections import Counter
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TOP / "tests"), str(TOP / "benchmarks")]

from chaos.runner import Outcome, run_program  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, help="run this program only")
    parser.add_argument("--repeat", type=int, default=1, help="so often, with --seed")
    parser.add_argument("--minutes", type=float, help="begin no program after so long")
    parser.add_argument("--faults", type=int, help="go on until so many have happened")
    parser.add_argument("--first", type=int, default=int(time.time()), help="the first seed")
    parser.add_argument("--keep", type=Path, default=Path("chaos-kept"), help="where evidence is kept")
    parser.add_argument("--go-on", action="store_true", help="do not stop at a violation")
    parser.add_argument("--record", action="store_true", help="write the counts as a result")
    options = parser.parse_args()
    began = time.monotonic()
    if options.seed is not None:
        outcomes = [told(run_program(options.seed, options.keep)) for _ in range(options.repeat)]
    else:
        outcomes = many(options, began)
    faults = sum((outcome.faults for outcome in outcomes), Counter())
    n_bad = sum(bool(outcome.violations) for outcome in outcomes)
    print(f"{len(outcomes)} programs, {faults.total()} faults, {n_bad} programs with violations")
    if options.record:
        write(outcomes, faults, time.monotonic() - began)
    sys.exit(1 if n_bad else 0)


def many(options: argparse.Namespace, began: float) -> list[Outcome]:
    outcomes: list[Outcome] = []
    n_faults, end = 0, began + 60 * (options.minutes or float("inf"))
    while time.monotonic() < end and n_faults < (options.faults or float("inf")):
        outcomes.append(told(run_program(options.first + len(outcomes), options.keep)))
        n_faults += outcomes[-1].faults.total()
        if outcomes[-1].violations and not options.go_on:
            break
    return outcomes


def told(outcome: Outcome) -> Outcome:
    """Print what came of a program."""
    print(f"seed {outcome.seed}: {outcome.faults.total()} faults, {outcome.n_items} tasks, "
          f"{outcome.n_lives} drivers", flush=True)  # fmt: skip
    for violation in outcome.violations:
        print(f"  VIOLATION {violation}", flush=True)
    if outcome.violations:
        print(f"  again: CHAOS_SEED={outcome.seed} make chaos", flush=True)
    return outcome


def write(outcomes: list[Outcome], faults: Counter[str], wall_s: float) -> None:
    from record import record

    rows = [{"fault": name, "happened": n} for name, n in sorted(faults.items())]
    path = record(
        "chaos",
        rows,
        is_of_speed=False,
        n_programs=len(outcomes),
        first_seed=outcomes[0].seed,
        n_faults=faults.total(),
        n_tasks=sum(outcome.n_items for outcome in outcomes),
        n_drivers=sum(outcome.n_lives for outcome in outcomes),
        violations={outcome.seed: outcome.violations for outcome in outcomes if outcome.violations},
        seconds=round(wall_s),
    )
    page = json.loads(path.read_text(encoding="utf-8"))
    page["command"] = shlex.join(["python", "scripts/run_chaos.py", *sys.argv[1:]])
    path.write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
