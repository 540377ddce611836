"""Workers of the runner are forked from one process, which has imported all tests and what they import.

A worker reads all tests. By itself it would import torch, transformers and others for that, and torch's
compiler as it runs: nine seconds and four, in each worker. In all else it is as the runner starts it.

The process itself imports this file, and reads the tests so.
"""

import json
import os
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from forked_programs import Programs, Starter

try:
    from evenload.executor.worker import fork_server
except ImportError:  # a part of evenload is tested alone
    fork_server = None

ARGUMENTS = "EVENLOAD_TESTS_READ"
"""In the environment of the process: the arguments of the runner."""

ADDRESS = "EVENLOAD_TESTS_FORKED_FROM"
"""In the environment of the workers: where the process is to be asked."""

QUICK = "EVENLOAD_TESTS_SERVERS_FROM"
"""In the environment of the workers: where a small process is to be asked, which has read what servers do.

It is the runner's child, not a worker's: those that an item starts, and nobody else, are children there.
"""

COMPILER = ("torch._dynamo", "torch._inductor.compile_fx")
"""Tests of ``evenload.clients`` use it in whichever worker they are."""

READ_BY_SERVERS = ("evenload.executor.worker.fork_main", "evenload.pipeline.worker.stage_host", "numpy")

LIMIT_S = 1100.0


def python_that_has_read(life: ExitStack, arguments: Sequence[str]) -> str:
    """A command in place of Python's, whose programs are forked from a process that has read the tests.

    life  ends the process, and the small one of ``quick_servers``
    """
    environment = {**os.environ, ARGUMENTS: json.dumps(arguments)}
    programs = life.enter_context(Programs(environment))
    programs.load(Path(__file__).stem)
    with open(os.devnull, "r+") as null:
        programs.start(Path(__file__), *[null.fileno()] * 3).wait(LIMIT_S)
    os.environ[ADDRESS] = programs.address
    os.environ[QUICK] = life.enter_context(Programs(os.environ)).address
    return shlex.join(python_command())


def python_command() -> list[str]:
    """Of a program that is forked from that process where there is one, else a new interpreter's."""
    if ADDRESS not in os.environ:
        return [sys.executable]
    client = Path(__file__).with_name("asked_program.py")
    return [sys.executable, "-I", "-S", str(client), os.environ[ADDRESS]]


def start_servers_anew() -> None:
    """Fork servers of a worker's executors are new interpreters: how they start is tested, too."""
    if fork_server is not None:
        vars(fork_server)["subprocess"] = subprocess


@pytest.fixture(scope="module")
def forked_servers() -> Iterator[None]:
    """Fork servers of executors are forked from that process, too: for workers that import torch and more."""
    if fork_server is not None and ADDRESS in os.environ:
        vars(fork_server)["subprocess"] = Starter(os.environ[ADDRESS])
    yield
    start_servers_anew()


@pytest.fixture(scope="module")
def quick_servers() -> Iterator[None]:
    """Executors start in half of the time, pipelines in a third; how they start is tested elsewhere."""
    if fork_server is not None and QUICK in os.environ:
        vars(fork_server)["subprocess"] = Starter(os.environ[QUICK], READ_BY_SERVERS)
    yield
    start_servers_anew()


class Reader:
    """Takes out what is there of a file that was not read to its end: each worker begins it anew."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: Any) -> None:
        config.workerinput = {}  # else it would do what is done once in a run

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self) -> list[pytest.Item]:
        return []  # the file is imported by now, and that is all

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            path = str(Path(report.nodeid).absolute())
            for name, module in list(sys.modules.items()):
                if getattr(module, "__file__", None) == path:
                    del sys.modules[name]


@contextmanager
def torch_alone() -> Iterator[None]:
    """Let torch start no thread, whatever a file computes as it is read: forks would wait for them."""
    try:
        import torch
    except ImportError:
        yield
    else:
        n_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(n_threads)


def read_tests(arguments: Sequence[str]) -> None:
    """Import all tests that a runner with these arguments would, and what many of them import later."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere), torch_alone():
        pytest.main([*arguments, "--numprocesses", "0", "--collect-only", "--capture", "no"], [Reader()])
        if "evenload.clients" in sys.modules:
            with warnings.catch_warnings(), suppress(ImportError):
                warnings.simplefilter("ignore")
                for name in COMPILER:
                    import_module(name)
        with suppress(ImportError, AttributeError):
            # Properties try constants of all our modules, and each worker would look for them, for seconds.
            import_module("hypothesis.internal.conjecture.providers")._get_local_constants()


if __name__ == Path(__file__).stem and ARGUMENTS in os.environ:
    read_tests(json.loads(os.environ[ARGUMENTS]))
