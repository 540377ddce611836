"""A whole vLLM 0.32 on this CPU: evenness of its ranks by its own counts, moves, and the time of a plan.

    python benchmarks/moe_in_vllm.py

In the environment that ``make test-engine`` makes. Prompts drift; experts are rearranged every eight steps.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from record import record

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from engine.engine_runs import serve

RUNS = [(moe, "sync", 2) for moe in ("off", "eplb", "search", "weighted")]
RUNS += [(moe, "async", 2) for moe in ("off", "search", "weighted")]
RUNS += [(moe, "sync", 4) for moe in ("off", "search", "weighted")]


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = serve(folder, "off", "none").answers
        for moe, mode, n_ranks in RUNS:
            run = serve(folder, moe, mode, n_ranks)
            mean, most = run.steps.sum(axis=0)
            plans = run.plans[0] if run.plans else []
            took_s = [one["took_s"] for one in plans[1:]]  # the first compiles
            moved = [np.count_nonzero(np.array(one["old"]) != np.array(one["new"])) for one in plans]
            rows.append(
                {
                    "policy": "vLLM's own" if moe == "off" else moe,
                    "mode": mode,
                    "ranks": n_ranks,
                    "steps": len(run.steps),
                    "rearranged": len(plans),
                    "imbalance": most / mean,
                    "moved": float(np.mean(moved)) if moved else 0.0,
                    "plan_ms": float(np.mean(took_s)) * 1e3 if took_s else 0.0,
                    "answers": "equal" if run.answers == plain else "differ",
                }
            )
    record("moe_in_vllm", rows, is_of_speed=False)


if __name__ == "__main__":
    main()
