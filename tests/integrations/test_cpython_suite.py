"""CPython's cases of ``concurrent.futures``, with evenload's executor; those that cannot apply have a reason.

They come with CPython's ``test`` package, which some distributions leave out (Debian: libpython3-testsuite).
``test_concurrent_futures.py`` has the same claims, and runs everywhere.
"""

import importlib
import multiprocessing
import unittest

import pytest

from evenload.futures import Executor

pytestmark = pytest.mark.slow  # they sleep for most of a minute

PLACES = (
    "test.test_concurrent_futures",
    *(f"test.test_concurrent_futures.{name}" for name in ("executor", "test_wait", "test_as_completed")),
    *(f"test.test_concurrent_futures.{name}" for name in ("test_shutdown", "test_init", "test_deadlock")),
    "test.test_concurrent_futures.test_process_pool",
)
MIXINS = (
    "ExecutorTest",
    "ExecutorShutdownTest",
    "WaitTests",
    "AsCompletedTests",
    "InitializerMixin",
    "FailingInitializerMixin",
    "ProcessPoolExecutorTest",
    "ProcessPoolShutdownTest",
    "ExecutorDeadlockTest",
)

INSIDE = "looks at private parts of ProcessPoolExecutor (its processes, threads or queues)"
OTHER_PROGRAM = "starts the standard executor in a program of its own; test_concurrent_futures.py does ours"
NOT_LOST = "the worker lives on, and the job fails with a PicklingError"
RENEWAL = "no worker is renewed by a count of jobs; `map(fresh=...)` does that"
NOT_APPLICABLE = {
    "test_interpreter_shutdown": OTHER_PROGRAM,
    "test_submit_after_interpreter_shutdown": OTHER_PROGRAM,
    "test_hang_gh83386": OTHER_PROGRAM,
    "test_hang_gh94440": OTHER_PROGRAM,
    "test_killed_child": INSIDE,
    "test_processes_terminate": INSIDE,
    "test_context_manager_shutdown": INSIDE,
    "test_del_shutdown": INSIDE,
    "test_shutdown_no_wait": INSIDE,
    "test_saturation": INSIDE,
    "test_idle_process_reuse_one": INSIDE,
    "test_idle_process_reuse_multiple": INSIDE,
    "test_shutdown_deadlock_pickle": INSIDE,
    "test_python_finalization_error": INSIDE,
    "test_force_shutdown_workers": INSIDE,
    "test_terminate_workers": INSIDE,
    "test_kill_workers": INSIDE,
    "test_max_workers_too_large": "a limit of Windows",
    "test_max_tasks_per_child": RENEWAL,
    "test_max_tasks_per_child_defaults_to_spawn_context": RENEWAL,
    "test_max_tasks_early_shutdown": RENEWAL,
    "test_max_tasks_per_child_pending_tasks_gh115634": RENEWAL,
    "test_traceback": "the cause of a job's error is a TaskError, which tells the device, too",
    "test_cancel_futures": "its workers have not started yet, so that no job has begun: all are cancelled",
    "test_error_at_task_unpickle": NOT_LOST,
    "test_exit_at_task_unpickle": NOT_LOST,
    "test_exit_during_result_pickle_on_worker": NOT_LOST,
    "test_error_during_result_unpickle_in_result_handler": NOT_LOST,
    "test_exit_during_result_unpickle_in_result_handler": NOT_LOST,
    "FailingInitializerMixin.test_initializer": "looks for a log record that the worker puts into a queue",
}


class OurExecutor(Executor):
    """An executor under the arguments that the cases give: a worker is a slot of the CPU."""

    def __init__(self, max_workers=None, mp_context=None, **more):
        super().__init__(max_workers=max_workers, echo=False, **more)


class OurMixin:
    executor_type = OurExecutor
    ctx = "forkserver"

    def get_context(self):
        return multiprocessing.get_context(self.ctx)


def suites():
    """The classes of cases that this Python has, by name, and what sets up their executor."""
    modules = []
    for place in PLACES:
        try:
            modules.append(importlib.import_module(place))
        except (ImportError, unittest.SkipTest):
            continue
    if not modules:
        return
    util = modules[0] if hasattr(modules[0], "ExecutorMixin") else None
    base = (util or importlib.import_module("test.test_concurrent_futures.util")).ExecutorMixin
    for name in MIXINS:
        for mixin in {getattr(module, name) for module in modules if hasattr(module, name)}:
            yield name, type(f"Our{name}", (OurMixin, mixin, base, unittest.TestCase), {})


def cases():
    for name, kind in suites():
        for method in unittest.TestLoader().getTestCaseNames(kind):
            why = NOT_APPLICABLE.get(f"{name}.{method}") or NOT_APPLICABLE.get(method)
            marks = pytest.mark.skip(reason=why) if why else ()
            yield pytest.param(kind, method, id=f"{name}.{method}", marks=marks)


NO_SUITE = [pytest.param(None, "", marks=pytest.mark.skip(reason="this Python has no package `test`"))]


@pytest.mark.parametrize(("kind", "method"), list(cases()) or NO_SUITE)
@pytest.mark.filterwarnings("default")
def test_case_of_cpython(kind, method):
    result = unittest.TestResult()
    kind(method).run(result)
    assert [text for _, text in result.errors + result.failures] == []
    assert result.testsRun == 1
    for _, why in result.skipped:
        pytest.skip(why)
