"""Real engines beside our adapters, where their sources are at hand; and gangs of ranks."""

import ast
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from forked_workers import python_command


@pytest.fixture(scope="session")
def peer_source():
    """Path of a file of an engine: from the installed package, or from an unpacked wheel.

    ``EVENLOAD_PEERS`` names the folder with the unpacked wheels:
    ``pip download --no-deps vllm==0.33.0 sglang==0.5.23`` and unzip them there.
    """

    def find(package: str, file: str) -> Path:
        roots = [Path(os.environ["EVENLOAD_PEERS"])] if "EVENLOAD_PEERS" in os.environ else []
        spec = importlib.util.find_spec(package)
        if spec and spec.submodule_search_locations:
            roots.append(Path(next(iter(spec.submodule_search_locations))).parent)
        for root in roots:
            if (root / package / file).is_file():
                return root / package / file
        pytest.skip(f"{package} is not here: install it, or name its unpacked wheel with EVENLOAD_PEERS")

    return find


@pytest.fixture(scope="session")
def parameters_of():
    """{name: has a default} of a function or method in a source file, without running the file."""

    def read(path: Path, name: str) -> dict[str, bool]:
        scope = ast.parse(path.read_text()).body
        *classes, function = name.split(".")
        for one in classes:
            scope = next(node.body for node in scope if isinstance(node, ast.ClassDef) and node.name == one)
        found = next(node for node in scope if isinstance(node, ast.FunctionDef) and node.name == function)
        names = [one.arg for one in found.args.args if one.arg not in ("self", "cls")]
        first_default = len(names) - len(found.args.defaults)
        return {one: i >= first_default for i, one in enumerate(names)}

    return read


@pytest.fixture(scope="session")
def interpreted():
    """Runs a script in a process of its own: Triton reads its settings when a kernel is decorated."""

    def run(script, *arguments, **environment):
        paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, str(Path(__file__).parent / script), *arguments],
            env=os.environ | environment | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=550,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def ranks_of(tmp_path_factory):
    """Starts ranks of a gang, forked from one process; returns what each has written."""

    def run(program, n_ranks, *arguments):
        folder = tmp_path_factory.mktemp(program)
        script = Path(__file__).parent / "routing" / "forked_ranks.py"
        environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        ranks = subprocess.Popen(
            [*python_command(), str(script), program, str(n_ranks), str(folder), *arguments],
            env=environment, stderr=subprocess.PIPE, text=True, process_group=0,
        )  # fmt: skip
        try:
            errors = ranks.communicate(timeout=550)[1]
        except subprocess.TimeoutExpired:
            os.killpg(ranks.pid, signal.SIGKILL)
            raise
        assert ranks.returncode == 0, errors
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(n_ranks)]

    return run
