"""Run benchmarks, each several times, and put what was measured with nothing else running into the docs.

    python benchmarks/run_all.py [--only moe_routing,merkle] [--stale] [--runs 3] [--minutes 30] [--list]

Every run is a process of its own with a time limit. A run during which other programs took more than 5 % of
the processors is waited for and made again, a few times; if it never was quiet, the result is written beside
the others as NAME.disturbed.json, and no table reads it. Of several runs each number is the median, and the
result says how far they differ. Counts do not depend on what else runs and are the same every time: they are
made once, without waiting. A benchmark whose peers are not here is left out, which is said. One that fails
does not stop the others. In the end it is said what became of each, and the docs' tables and pictures are
made anew.
"""

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from result_files import COMMITTED, MOST_OF_OTHERS, ROOT, Page, combined, is_quiet, read

TRIES = 3  # of a run that others disturb
QUIET_WITHIN_S = 300.0  # so long a run waits until nothing else runs
LOOK_S = 2.0  # at the processors, to see whether anything runs; the run itself is watched, too
LEAST_LIMIT_S = 600.0
SLOWER = 4.0  # than its minutes a run may be


@dataclass(frozen=True)
class Benchmark:
    """A command that makes results.

    command  below benchmarks/, without the interpreter
    minutes  that one run takes, about, on two cores with nothing else running
    results  that it writes
    needs    what it needs that a checkout does not bring: it is run only if that is there, or if it is named
    told_by  environment variables that say where that is; none: nothing can
    """

    command: str
    minutes: float
    results: tuple[str, ...]
    needs: str = ""
    told_by: tuple[str, ...] = ()

    @property
    def limit_s(self) -> float:
        return max(LEAST_LIMIT_S, SLOWER * 60 * self.minutes)

    @property
    def is_possible(self) -> bool:
        return not self.needs or bool(self.told_by and all(map(os.environ.get, self.told_by)))

    def runs_of(self, wanted: int) -> int:
        """How often it is run: once if all that it writes are counts, which are the same every time."""
        return 1 if self.is_of_counts else wanted

    @property
    def is_of_counts(self) -> bool:
        """Whether its results, as far as they were ever made, say so."""
        pages = [read(name, COMMITTED) for name in self.results if (COMMITTED / f"{name}.json").exists()]
        return bool(pages) and all(page.get("is_of_speed") is False for page in pages)


STRATEGIES = "clients_strategies.py"
BATCH8 = "serial fused:20 rules:20 rules-compiled:10 rules-compiled:20 auto"
PROVERS = ("EVENLOAD_SNARKJS", "EVENLOAD_RAPIDSNARK")
HUNDRED = "serial 'threads*2/eager' 'threads*2/rules-compiled:10' auto"
BENCHMARKS = (
    Benchmark("audit_delays.py", 3, ("audit_delays",)),
    Benchmark("audit_traces.py traces", 0.2, ("audit_traces",), needs="a folder of public traces"),
    Benchmark("moe_in_vllm.py", 5, ("moe_in_vllm",), needs="the environment of make test-engine"),
    Benchmark("clients_adapters.py --ranks 4 64 --repeats 1", 0.7, ("clients_adapters",)),
    Benchmark(f"{STRATEGIES} LeNet-5 --clients 20 --batch 8 --cores 1 --repeats 2 --name clients_batch8"
              f" --strategies {BATCH8}", 0.5, ("clients_batch8",)),
    Benchmark("clients_cifar.py --clients 20 --repeats 1", 0.6, ("clients_cifar",)),
    Benchmark("clients_convolutions.py", 0.2, ("clients_convolutions",)),
    Benchmark("clients_digits.py", 0.4, ("clients_digits",)),
    Benchmark("clients_first_rounds.py --rounds 1 5 100 --repeats 1", 2.8, ("clients_first_rounds",)),
    Benchmark(f"{STRATEGIES} LeNet-5 GRU transformer --clients 20 --rounds 1000 --repeats 1", 1.7,
              ("clients_larger",)),
    Benchmark(f"{STRATEGIES} LeNet-5 --clients 100 --repeats 1 --name clients_larger_100"
              f" --strategies {HUNDRED}", 1.1, ("clients_larger_100",)),
    Benchmark("clients_peers.py --flower PYTHON --pfl PYTHON --jax PYTHON --repeats 2", 3, ("clients_peers",),
              needs="interpreters with Flower, pfl and JAX in place of PYTHON"),
    Benchmark(f"{STRATEGIES} 64-32-10 784-128-10 --rounds 3000 --repeats 2", 1.1, ("clients_small",)),
    Benchmark("exact_levels.py", 1.5, ("exact_levels",)),
    Benchmark("exact_price.py", 2, ("exact_price",)),
    Benchmark("exact_training.py", 90, ("exact_training",)),
    Benchmark("exec_scripts.py CLONES --kill", 4, ("exec_scripts",),
              needs="a folder of the scripts' repositories, or for them, in place of CLONES"),
    Benchmark("executor_faults.py", 15, ("executor_faults",)),
    Benchmark("executor_memory.py --items 300000", 1.5, ("executor_memory",)),
    Benchmark("executor_overhead.py --rounds 2", 2, ("executor_overhead",)),
    Benchmark("executor_ray.py --draws 1", 2.2, ("executor_ray",)),
    Benchmark("executor_startup.py --rounds 2", 1, ("executor_startup",)),
    Benchmark("executor_transport.py --rounds 2", 2, ("executor_transport",)),
    Benchmark("integrations.py", 1.2, ("integrations",)),
    Benchmark("merkle.py trees", 0.3, ("merkle",)),
    Benchmark("merkle.py devices", 0.3, ("merkle_devices",)),
    Benchmark("moe_clones.py", 0.2, ("moe_clones",)),
    Benchmark("moe_clones.py --fetches", 0.5, ("moe_clone_fetches",)),
    Benchmark("moe_dispatch.py", 0.5, ("moe_dispatch",)),
    Benchmark("moe_engines.py", 0.3, ("moe_engines",)),
    Benchmark("moe_moves.py", 2, ("moe_moves",)),
    Benchmark("moe_placement.py moves", 0.6, ("moe_placement_moves",)),
    Benchmark("moe_placement.py nodes", 0.2, ("moe_placement_nodes",)),
    Benchmark("moe_placement.py policy", 0.2, ("moe_placement_policy",),
              needs="vLLM's and SGLang's wheels, for the rows of peers", told_by=("EVENLOAD_PEERS",)),
    Benchmark("moe_placement.py search", 0.7, ("moe_placement_search",)),
    Benchmark("moe_planner.py", 0.1, ("moe_planner",)),
    Benchmark("moe_routing.py --repeats 2", 2, ("moe_routing",)),
    Benchmark("pipeline_planner.py", 2, ("pipeline_planner",)),
    Benchmark("pipeline_planner.py --large", 0.8, ("pipeline_planner_large",)),
    Benchmark("pipeline_prediction.py --items 40 --steps 4", 0.3, ("pipeline_prediction",)),
    Benchmark("pipeline_reuse.py --stages 1 --repeat 1", 0.5, ("pipeline_reuse",)),
    Benchmark("pipeline_run.py", 1.7, ("pipeline_run",)),
    Benchmark("referee/replay.py --at-once 3", 20, ("referee", "referee_outcomes"),
              needs="to be run by itself: its records stand beside its results"),
    Benchmark("referee/replay.py --real --rounds 2", 5, ("referee_real",),
              needs="to be run by itself: its records stand beside its results"),
    Benchmark("schedule_simulation.py", 1, ("schedule_simulation",)),
    Benchmark("schedule_simulation.py --learned", 0.5, ("schedule_simulation_learned",)),
    Benchmark("unequal_training.py", 2.1, ("unequal_training",)),
    Benchmark("zk_batch.py", 0.5, ("zk_batch",)),
    Benchmark("zk_kernels.py", 0.3, ("zk_kernels_ifma52", "zk_kernels_word64")),
    Benchmark("zk_prove.py", 1.4, ("zk_prove",),
              needs="snarkjs and rapidsnark, for the columns of peers", told_by=PROVERS),
    Benchmark("zk_prove.py --level all", 1.2, ("zk_levels",),
              needs="snarkjs and rapidsnark, for the columns of peers", told_by=PROVERS),
    Benchmark("zk_prove.py --large --only 1M", 1.5, ("zk_prove_1M",),
              needs="rapidsnark, for the columns of peers", told_by=PROVERS[1:]),
    Benchmark("zk_prove.py --backend wgsl", 1, ("zk_wgsl",),
              needs="snarkjs, for the columns of peers", told_by=PROVERS[:1]),
    Benchmark("zk_service.py", 0.7, ("zk_service",)),
    Benchmark("zk_verify.py --runs 5", 1, ("zk_verify",)),
)  # fmt: skip


@dataclass
class Outcome:
    """What became of a benchmark, and how long it took."""

    benchmark: Benchmark
    said: str
    seconds: float


def is_stale(name: str) -> bool:
    """Whether nobody knows that nothing else ran when ``name`` was measured, or how far its runs differ."""
    try:
        page = read(name)
    except FileNotFoundError:
        return False
    return not is_quiet(page) or (page.get("is_of_speed") is not False and page.get("runs", 1) < 2)


def chosen(only: Sequence[str], stale: bool) -> list[Benchmark]:
    """The benchmarks that were asked for. Raises SystemExit for a name that there is not."""
    known = {name for benchmark in BENCHMARKS for name in benchmark.results}
    unknown = sorted(set(only) - known)
    if unknown:
        raise SystemExit(f"no benchmark writes {', '.join(unknown)}; known: {', '.join(sorted(known))}")
    if only:
        return [one for one in BENCHMARKS if set(only) & set(one.results)]
    wanted = [one for one in BENCHMARKS if not stale or any(map(is_stale, one.results))]
    for one in wanted:
        if not one.is_possible:
            told = f" (say where: {', '.join(one.told_by)})" if one.told_by else ""
            print(f"left out: {', '.join(one.results)}: needs {one.needs}{told}", file=sys.stderr)
    return [one for one in wanted if one.is_possible]


def share_at_work(seconds: float) -> float:
    """The share of the processors that is at work, looked at for so long."""
    return psutil.cpu_percent(interval=seconds) / 100.0


def wait_for_quiet(limit_s: float = QUIET_WITHIN_S) -> bool:
    """Wait until the processors are at rest; False if they are not within the limit."""
    until = time.monotonic() + limit_s
    while share_at_work(LOOK_S) > MOST_OF_OTHERS:
        if time.monotonic() > until:
            return False
    return True


def run_once(benchmark: Benchmark, folder: Path) -> str:
    """Run it, with its results in ``folder``; returns what went wrong, "" if nothing did."""
    command = [sys.executable, *shlex.split(f"benchmarks/{benchmark.command}")]
    environment = {**os.environ, "EVENLOAD_BENCHMARK_RESULTS": str(folder)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        code = process.wait(benchmark.limit_s)
    except subprocess.TimeoutExpired:
        return f"did not end within {benchmark.limit_s / 60:.0f} min"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return f"exit code {code}" if code else ""


def measured(benchmark: Benchmark) -> tuple[dict[str, Page], str]:
    """One run that nothing disturbed, by result, or the last of ``TRIES``; and what went wrong."""
    pages: dict[str, Page] = {}
    for number in range(TRIES):
        if not benchmark.is_of_counts:
            wait_for_quiet()
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            wrong = run_once(benchmark, folder)
            if wrong:
                return {}, wrong
            names = {path.name.partition(".")[0]: path for path in folder.glob("*.json")}
            pages = {name: json.loads(path.read_text(encoding="utf-8")) for name, path in names.items()}
        if not pages:
            return {}, "wrote no result"
        if all(map(is_quiet, pages.values())):
            return pages, ""
        print(f"others ran meanwhile; try {number + 1} of {TRIES}", file=sys.stderr, flush=True)
    return pages, ""


def run(benchmark: Benchmark, n_runs: int) -> Outcome:
    """Run it ``n_runs`` times and write the medians to benchmarks/results."""
    began, found = time.monotonic(), {}
    for number in range(n_runs):
        print(f"\n=== {benchmark.command}, run {number + 1} of {n_runs}", flush=True)
        pages, wrong = measured(benchmark)
        if wrong:
            return Outcome(benchmark, wrong, time.monotonic() - began)
        for name, page in pages.items():
            found.setdefault(name, []).append(page)
        if not all(map(is_quiet, pages.values())):
            break  # it will not be written into the docs, however often it is run
        if all(page.get("is_of_speed") is False for page in pages.values()):
            break  # it would be the same again
    said = [write(name, combined(pages)) for name, pages in found.items()]
    return Outcome(benchmark, "; ".join(said), time.monotonic() - began)


def write(name: str, page: Page) -> str:
    """Write the result, beside the others if it was disturbed; returns what was done."""
    path = COMMITTED / f"{name}{'' if is_quiet(page) else '.disturbed'}.json"
    path.write_text(json.dumps(page, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if not is_quiet(page):
        return f"DISTURBED, in no table: {path.name}"
    most = max(page.get("spread", {}).values(), default=0.0)
    note = "runs have other rows, the last one is taken" if page.get("runs_differ") else ""
    return f"wrote {path.name}" + (
        f" ({note or f'runs differ by at most {most:.1%}'})" if note or most else ""
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="results to make, separated by commas")
    parser.add_argument(
        "--stale", action="store_true", help="those not known to be measured quietly, in runs"
    )
    parser.add_argument("--runs", type=int, default=3, help="of each")
    parser.add_argument("--minutes", type=float, help="begin none that would end later than this, about")
    parser.add_argument("--no-docs", action="store_true", help="leave the tables of the docs as they are")
    parser.add_argument("--list", action="store_true", help="say what would be run, and how long it takes")
    given = parser.parse_args()
    wanted = chosen([name for name in given.only.split(",") if name], given.stale)
    if given.list:
        for one in wanted:
            minutes = one.minutes * one.runs_of(given.runs)
            print(f"{minutes:4.1f} min  {','.join(one.results)}  {one.command}  {one.needs}")
        print(f"{sum(one.minutes * one.runs_of(given.runs) for one in wanted):4.0f} min in all")
        return 0
    began, outcomes = time.monotonic(), []
    for one in wanted:
        left_s = float("inf") if given.minutes is None else 60 * given.minutes - (time.monotonic() - began)
        if 60 * one.minutes * one.runs_of(given.runs) > left_s:
            outcomes.append(Outcome(one, "not begun: no time left", 0.0))
            continue
        outcomes.append(run(one, given.runs))
    print()
    for outcome in outcomes:
        print(f"{outcome.seconds / 60:5.1f} min  {','.join(outcome.benchmark.results)}: {outcome.said}")
    if not given.no_docs:
        for maker in ("benchmarks/docs_tables.py", "scripts/docs_pictures.py"):
            subprocess.run([sys.executable, str(ROOT / maker)], cwd=ROOT, check=True)
    return 0 if all("wrote" in one.said and "DISTURBED" not in one.said for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
