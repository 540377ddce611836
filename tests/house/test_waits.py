"""No test waits for a fixed time: it waits until something is so, or until an event is set.

``time.sleep`` is for tasks: what a worker does while a test looks at the engine. It may stand in a function
that is made within a test, in a method of a class, or in a lambda, and not in a loop there, which would be
waiting. Any other is named below, with what it is.
"""

import ast
import re
from collections.abc import Iterator

import pytest
from parsed_sources import TESTS, text_of, tree_of

SLEEPERS: dict[str, dict[str, str]] = {
    "conftest.py": {
        "wait": "what tests wait with",
        "get_node_in_time": "asks Ray again, with a limit, until a node has started",
        "pytest_sessionfinish": "waits, with a limit, until no process of a test is left",
    },
    "engine/engine_runs.py": {"serve_and_kill": "waits, with a limit, until a whole engine has planned"},
    "engine/test_serving.py": {"until": "waits, with a limit, without this folder's fixtures"},
    # tasks at the top of a module
    "executor/loop/test_membership.py": {"slow": "a task", "long_on_one": "a task that waits for a file"},
    "executor/task/test_hybrid.py": {"on_cpu": "a task"},
    "executor/test_one_clock.py": {
        "ends_later": "a task, which may be on its way when its map is broken off",
        "timed": "a task",
        "once_for_ever": "a task that is ended by its run's end",
    },
    "executor/test_pause.py": {"nap": "a task"},
    "integrations/test_trackers.py": {"work": "a task that takes its time"},
    "integrations/test_datasets.py": {"met_another": "a task that waits for another process"},
    "report/test_known_truth.py": {
        "nap": "a task that tells how long it took by its own clock",
        "spend": "the same",
    },
    "test_waiting.py": {
        "nap": "a task that waits",
        "nap_async": "the same, as a coroutine",
        "nap_while_another_computes": "gives the other coroutine its turn",
        "that_raises": "a task that waits",
        "test_a_thread_that_still_waits_at_the_end_of_a_chunk_counts_until_there": "the waiting that counts",
    },
    "executor/worker/test_fork_server.py": {"slow_pid_of": "a task", "slowly": "a task"},
    # tasks that wait in a worker for a file, or in a thread for what the test does next
    "clients/fused/inductor/test_compiling.py": {"count": "a thread that takes turns"},
    "executor/journal/test_journal.py": {"slow": "a slow disk"},
    "executor/loop/test_results.py": {"wait_for": "a task that waits for a file"},
    "executor/loop/test_own_thread.py": {"behind": "a task that waits for a file"},
    "executor/loop/test_engine.py": {"until_exists": "a task that waits for a file"},
    "executor/run/test_calls.py": {"wait": "a task that waits for a file"},
    "executor/task/test_tasks_in_runs.py": {
        "Picky.__init__": "a task that waits for a file",
        "until_warned": "items that come as the run says something",
    },
    "executor/worker/test_protocol_violations.py": {"behind_a_gate": "a task that waits for a file"},
    # moments and rates
    "chaos/deeds.py": {"wait_for": "a task that waits, with a limit, for a child"},
    "chaos/driver.py": {
        "PhaseRun.act": "waits until so many results are there",
        "pause": "a random pause, any will do",
    },
    "chaos/intruder.py": {
        "sent": "waits, with a limit, until a signal shows",
    },
    "chaos/runner.py": {
        "run_life": "looks, with a limit, at what a driver does",
        "left_behind": "waits, with a limit, until no process is left",
    },
    "dashboard/test_server.py": {"write_quickly": "a rate of events, which may be lower"},
}
"""By file: the function that sleeps, and what it is."""

WAITS = ("join", "wait", "communicate", "result", "get")
"""Of a thread, a process, an event, a future, a queue: without an argument each waits for ever."""

MAY_WAIT = re.compile(rf"\b({'|'.join(WAITS)})\s*\(\s*[#)]")
"""In each file that is worth parsing: such a word, and nothing but room or a comment in its brackets."""


def sleeps(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Each call of a function ``sleep``: where it is, and whether it is a task by its place."""

    def visit(node: ast.AST, path: tuple[ast.AST, ...]) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name == "sleep":
                yield described(path)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, (*path, node))

    yield from visit(tree, ())


def waits_without_limit(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Each wait that may last for ever: where it is, and whether it is a task's, or another's limit holds."""

    def visit(node: ast.AST, path: tuple[ast.AST, ...]) -> Iterator[tuple[str, bool]]:
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if is_call and node.func.attr in WAITS and not node.args and not node.keywords:
            name, is_task = described(path)
            calls = [one.func for one in path if isinstance(one, ast.Call)]
            yield name, is_task or any(getattr(one, "attr", "") == "wait_for" for one in calls)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, (*path, node))

    yield from visit(tree, ())


def described(path: tuple[ast.AST, ...]) -> tuple[str, bool]:
    """The name of the innermost function on ``path``, and whether a sleep there is a task's."""
    named = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    names = [(node.name, isinstance(node, ast.ClassDef)) for node in path if isinstance(node, named)]
    is_method = [is_class for _, is_class in names[-2:]] == [True, False]
    name = ".".join(name for name, _ in names[-2 if is_method else -1 :])
    scopes = [i for i, node in enumerate(path) if isinstance(node, (*named, ast.Lambda))]
    if not scopes:
        return name, False
    inside = path[scopes[-1] :]
    is_within = len(scopes) > 1 or isinstance(inside[0], ast.Lambda)
    return name, is_within and not any(isinstance(node, ast.While) for node in inside)


def test_who_sleeps_is_a_task() -> None:
    bare = {
        (path.relative_to(TESTS).as_posix(), name)
        for path in TESTS.rglob("*.py")
        if "sleep" in text_of(path)  # else there is no call of it to parse for
        for name, is_task in sleeps(tree_of(path))
        if not is_task
    }
    named = {(file, name) for file, names in SLEEPERS.items() for name in names}
    assert bare - named == set(), "wait with `until`, an event or a virtual clock; or say what it is"
    assert named - bare == set(), "no longer there"


def test_no_wait_lasts_for_ever() -> None:
    """pytest's own limit ends what waits in its thread, and in no other, and leaves what was waited for."""
    bare = {
        (path.relative_to(TESTS).as_posix(), name)
        for path in TESTS.rglob("*.py")
        if MAY_WAIT.search(text_of(path))
        for name, is_limited in waits_without_limit(tree_of(path))
        if not is_limited
    }
    assert bare == set(), "give it `timeout=500`"


@pytest.mark.parametrize(
    ("source", "n_found"),
    [
        ("def test(): thread.join()", 1),
        ("def test():\n  print(process.communicate()[0], queue.get())", 2),
        ("def test(): future.result(5); event.wait(timeout=3); ''.join(x); {}.get(3)", 0),
        ("def test():\n  def task(x): Event().wait()", 0),
        ("async def test(): await asyncio.wait_for(event.wait(), 9)", 0),
    ],
)
def test_a_wait_without_limit_is_told(source: str, n_found: int) -> None:
    assert sum(not is_limited for _, is_limited in waits_without_limit(ast.parse(source))) == n_found


@pytest.mark.parametrize(
    ("source", "is_task"),
    [
        ("def test(): time.sleep(1)", False),
        ("def test():\n  while x: sleep(1)", False),
        ("def test():\n  def wait():\n    while x: time.sleep(1)", False),
        ("time.sleep(1)", False),
        ("def test():\n  def task(x): time.sleep(1)", True),
        ("class Task:\n  def __call__(self, x): time.sleep(1)", True),
        ("def test(): list(map(lambda x: time.sleep(1), range(3)))", True),
    ],
)
def test_a_task_is_told_by_its_place(source: str, is_task: bool) -> None:
    assert [is_task for _, is_task in sleeps(ast.parse(source))] == [is_task]


def test_no_page_is_waited_for_by_the_clock() -> None:
    word = "wait_for_" + "timeout"
    assert [path.name for path in TESTS.rglob("*.py") if word in text_of(path)] == []


def test_no_click_is_forced() -> None:
    """A forced click goes where the button was, and nobody hears that it was missed: press a key instead."""
    word = "click(" + "force"
    assert [path.name for path in TESTS.rglob("*.py") if word in text_of(path)] == []
