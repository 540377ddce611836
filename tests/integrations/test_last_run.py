"""The last run of this process, whichever way it was started."""

import joblib
import pytest

import evenload
import evenload.frames
import evenload.joblib
from evenload.futures import Executor


def fails_on_two(x):
    if x == 2:
        raise KeyError(x)
    return x


def fails_on_two_of_a(row):
    return fails_on_two(row["a"])


@pytest.mark.parametrize("backend", ["inline", "process"])
def test_of_maps(backend):
    assert list(evenload.map(abs, range(7), devices="cpu*1", backend=backend)) == list(range(7))
    last = evenload.last_run()
    assert (last.task, last.stage, last.status, last.summary.done) == ("abs", "map", "done", 7)
    assert last.certificate()
    list(evenload.map(fails_on_two, range(5), devices="cpu*1", backend=backend, on_error="return"))
    last = evenload.last_run()
    assert (last.status, last.summary.failed, last.summary.total) == ("failures", 1, 5)
    assert str(last).startswith("fails_on_two: 4 of 5 done")


def test_of_submitted_calls():
    with evenload.Executor("cpu*1") as executor:
        futures = [executor.submit(abs, n) for n in range(3)]
        executor.finish_calls(wait=True)
        assert all(one.done() for one in futures)
        assert evenload.last_run().summary.done == 3
        assert executor.submit(abs, -5).result(500) == 5
    assert evenload.last_run().summary.done == 1
    assert evenload.last_run().task == "submitted calls"


class Upper:
    def __init__(self, model, *, device):
        pass

    def generate(self, prompts):
        return [prompt.upper() for prompt in prompts]


def test_the_function_of_an_integration_is_named():
    with evenload.Executor("cpu*1", backend="inline") as executor:
        names = []
        pd = pytest.importorskip("pandas")
        frame = pd.DataFrame({"a": [0, 1]})
        evenload.frames.map(frame, fails_on_two_of_a, executor=executor)
        names.append(evenload.last_run().task)
        evenload.frames.map(frame, len, by="a", executor=executor)
        names.append(evenload.last_run().task)
        evenload.frames.map(frame["a"], fails_on_two, executor=executor)
        names.append(evenload.last_run().task)
        evenload.LLM("none", engine=Upper, executor=executor).generate(["a"])
        names.append(evenload.last_run().task)
    assert names == ["fails_on_two_of_a", "len", "fails_on_two", "Upper"]


def test_of_futures_and_of_each_call_of_joblib():
    with Executor(max_workers=1) as executor:
        list(executor.map(abs, range(4)))
    assert evenload.last_run().summary.done == 4
    with joblib.parallel_config("evenload", devices="cpu*2"):
        for n_jobs in (6, 2):
            made = joblib.Parallel(batch_size=1)(joblib.delayed(abs)(-n) for n in range(n_jobs))
            assert made == list(range(n_jobs))
            last = evenload.last_run()
            assert (last.summary.done, set(last.summary.devices)) == (n_jobs, {"cpu:0", "cpu:1"})
