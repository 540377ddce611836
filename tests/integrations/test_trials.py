"""Trials of Optuna and Ray Tune over devices, as the page shows them. Oracle: Optuna's own ``n_jobs=1``."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import evenload
import evenload.futures
from evenload._optional import is_installed

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "optuna-and-ray-tune.md"
needs_optuna = pytest.mark.skipif(not is_installed("optuna"), reason="optuna is not installed")


def train(x, n):
    if n == 3:
        os._exit(1)
    return (x - 2) ** 2 + n * n


def spaced(trial, least):
    return trial.suggest_float("x", -10, 10), trial.suggest_int("n", least, 5)


def studied(run, n_jobs, least=4, sampler="TPESampler"):
    """Every trial's state, parameters and value of a study of 30 whose trials ``run`` runs."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=getattr(optuna.samplers, sampler)(seed=11))
    study.optimize(lambda t: run(*spaced(t, least)), n_trials=30, n_jobs=n_jobs, catch=(Exception,))
    return [(trial.state.name, trial.params, trial.value) for trial in study.trials]


@needs_optuna
def test_on_one_device_the_trials_are_those_of_optuna():
    with evenload.futures.Executor("cpu*1") as executor:
        ours = studied(lambda *args: executor.submit(train, *args).result(), 1)
    assert ours == studied(train, 1)


@needs_optuna
def test_a_trial_whose_process_dies_costs_one_trial():
    with evenload.futures.Executor("cpu*2") as executor:
        ours = studied(lambda *args: executor.submit(train, *args).result(), 2, least=2)
    assert len(ours) == 30
    assert any(params["n"] == 3 for _, params, _ in ours)
    for state, params, value in ours:
        assert (state == "FAIL") == (params["n"] == 3), params
        assert value == (None if params["n"] == 3 else train(**params))


@needs_optuna
@pytest.mark.skipif(not is_installed("ray"), reason="ray is not installed")
def test_the_searcher_of_ray_tune_runs_as_the_page_says(tmp_path):
    block = PAGE.read_text(encoding="utf-8").split("## Ray Tune")[1]
    code, expected = re.search(r"```python\n(.*?)```\n```text\n(.*?)```", block, re.DOTALL).groups()
    (tmp_path / "page.py").write_text(code)
    setting = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = {"capture_output": True, "text": True, "timeout": 500, "check": False}
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, env=setting, **options)
    assert done.stdout == expected, done.stderr
