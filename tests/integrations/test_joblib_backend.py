"""joblib's backend "evenload" as programs use it: scripts, scikit-learn, failures, generators, refusals."""

import os
import subprocess
import sys
import warnings

import joblib
import numpy as np
import pytest
from integrations.jobs import Rejected, rejects_three, square, store_mean, where, within

import evenload
from evenload.errors import ConfigError, TaskError
from evenload.joblib import EvenloadBackend

LIMIT_S = 500
SCRIPT = """
import joblib
import evenload
import evenload.joblib

class Scaled:
    def __init__(self, value):
        self.value = value

class Refused(Exception):
    pass

def scale(x, by):
    if by == 0:
        raise Refused(x)
    return Scaled(x * by), evenload.current_device().id

if __name__ == "__main__":
    with joblib.parallel_config("evenload", devices="cpu*1"):
        print(joblib.effective_n_jobs(-1))
        made = joblib.Parallel()(joblib.delayed(scale)(x, by=3) for x in range(5))
        print([one.value for one, _ in made], {type(one) for one, _ in made} == {Scaled})
        try:
            joblib.Parallel()(joblib.delayed(scale)(x, by=0) for x in [7])
        except Refused as error:
            print("refused", *error.args)
        with joblib.Parallel(n_jobs=3) as parallel:
            for _ in range(2):
                made += parallel(joblib.delayed(scale)(x, by=2) for x in range(2))
    print({where for _, where in made}, evenload.current_device())
"""


@pytest.fixture(scope="module")
def backend():
    """One, whose two workers stay for all tests of this module."""
    made = EvenloadBackend(devices="cpu*2")
    yield made
    made.abort_everything(ensure_ready=False)


@pytest.fixture
def chosen(backend):
    with joblib.parallel_config(backend):
        yield


def run(function, items, **options):
    return joblib.Parallel(**options)(joblib.delayed(function)(x) for x in items)


def test_functions_classes_and_errors_of_a_script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["1", "[0, 3, 6, 9, 12] True", "refused 7", "{'cpu:0'} None"]


@pytest.mark.parametrize("batch_size", ["auto", 1, 7])
def test_results_are_in_order(chosen, batch_size):
    assert run(square, range(50), batch_size=batch_size) == [x * x for x in range(50)]
    assert run(lambda x: square(x), []) == []
    unordered = run(square, range(20), batch_size=batch_size, return_as="generator_unordered")
    assert sorted(unordered) == [x * x for x in range(20)]


def test_a_memory_map_is_filled_and_what_is_cached_stays(chosen, tmp_path):
    """As joblib's own page has it: rows are loaded as a memory map, and jobs fill another."""
    rows = np.arange(4000, dtype="f8").reshape(8, 500)
    joblib.dump(rows, tmp_path / "rows")
    out = np.memmap(tmp_path / "out", dtype="f8", shape=8, mode="w+")
    loaded = joblib.load(tmp_path / "rows", mmap_mode="r")
    joblib.Parallel()(joblib.delayed(store_mean)(loaded, out, i) for i in range(8))
    assert np.fromfile(tmp_path / "out").tolist() == rows.mean(axis=1).tolist()
    cached = joblib.Memory(tmp_path / "cache", verbose=0).cache(square)
    assert run(cached, range(3)) == [0, 1, 4]
    assert [cached.check_call_in_cache(x) for x in range(4)] == [True, True, True, False]


def test_a_generator_that_is_left_early_leaves_the_backend_usable(chosen):
    for return_as in ("generator", "generator_unordered"):
        made = run(square, range(30), return_as=return_as, batch_size=1)
        next(made)
        with warnings.catch_warnings(action="ignore"):  # joblib says what was made in vain, if anything was
            made.close()
        assert run(square, range(5)) == [0, 1, 4, 9, 16]


def test_a_job_knows_its_device(chosen):
    made = run(where, range(12), batch_size=1)
    assert [x for x, *_ in made] == list(range(12))
    assert {there for _, there, *_ in made} <= {"cpu:0", "cpu:1"}
    assert {torch for *_, torch, _ in made} == {"cpu"}
    assert all(threads >= 1 for *_, threads in made)
    assert evenload.current_device() is None


def test_a_parallel_within_a_job_is_on_the_device_of_that_job(chosen):
    for n, made in enumerate(run(within, range(2))):
        assert [x for x, *_ in made] == [n, n + 1, n + 2]
        assert len({there for _, there, *_ in made}) == 1


def test_a_job_fails_with_what_it_raised_and_the_next_call_works(chosen):
    with pytest.raises(Rejected) as caught:
        run(rejects_three, range(9))
    assert (caught.value.row, caught.value.why) == (3, "odd")
    assert isinstance(caught.value.__cause__, TaskError)
    assert caught.value.__cause__.device in ("cpu:0", "cpu:1")
    assert run(rejects_three, range(3)) == [0, 1, 2]


def test_scikit_learn_searches_without_a_warning(capfd):
    """In this process a warning is an error; of the workers one would be printed."""
    from sklearn.datasets import load_iris
    from sklearn.model_selection import GridSearchCV
    from sklearn.naive_bayes import GaussianNB

    rows, classes = load_iris(return_X_y=True)
    smoothing = {"var_smoothing": [1e-9, 1.0, 100.0]}
    alone = GridSearchCV(GaussianNB(), smoothing, cv=3, n_jobs=1).fit(rows, classes)
    one = EvenloadBackend(devices="cpu*1")  # each worker would import scikit-learn, for a second
    with joblib.parallel_config(one):
        search = GridSearchCV(GaussianNB(), smoothing, cv=3, n_jobs=-1).fit(rows, classes)
    one.abort_everything(ensure_ready=False)
    assert search.best_params_ == alone.best_params_
    found, wanted = (fit.cv_results_["mean_test_score"].tolist() for fit in (search, alone))
    assert found == pytest.approx(wanted)
    assert evenload.last_run().summary.failed == 0
    assert "arning" not in capfd.readouterr().err


@pytest.mark.parametrize("option", ["polic", "policy", "n_gpus", "x" * 10_000])
def test_unknown_options_are_refused_with_the_alternative(option):
    with pytest.raises(ConfigError) as refused:
        joblib.parallel_config("evenload", **{option: 1})
    assert len(str(refused.value)) < 600
    assert option[:20] in str(refused.value)
    assert "evenload.Executor" in refused.value.hint


def test_devices_that_are_not_there_are_refused_before_a_job_runs():
    with (
        pytest.raises(evenload.errors.EvenloadError, match="gpux"),
        joblib.parallel_config("evenload", devices="gpux"),
    ):
        run(square, range(3))


def test_what_shares_memory_is_run_by_threads_and_asking_for_both_is_refused(chosen):
    found = []
    run(found.append, range(5), require="sharedmem")
    assert sorted(found) == list(range(5))
    with pytest.raises(ValueError, match=r"sharedmem|shared memory"):
        joblib.Parallel(backend="evenload", require="sharedmem")
    with pytest.raises(ValueError, match="n_jobs == 0"):
        run(square, range(3), n_jobs=0)


FORKED = """
import os, warnings, joblib, evenload.joblib
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
joblib.parallel_config("evenload", devices="cpu*2")
call = lambda: joblib.Parallel()(joblib.delayed(abs)(-n) for n in range(4))
assert call() == [0, 1, 2, 3]
child = os.fork()
if not child:
    made = call()
    joblib.parallel_config("sequential")
    import gc; gc.collect()
    os._exit(0 if made == [0, 1, 2, 3] else 1)
assert os.waitpid(child, 0)[1] == 0
assert call() == [0, 1, 2, 3]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_process_has_workers_of_its_own():
    command = [sys.executable, "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert (done.returncode, done.stderr) == (0, "")
