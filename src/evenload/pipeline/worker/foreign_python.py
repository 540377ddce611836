"""Run a stage in another Python interpreter (``python: /venvs/score/bin/python``), with its own packages.

The worker starts the interpreter and exchanges lines of JSON with it. The stage writes its files to the run
folder. The interpreter gets the package evenload from this environment; numpy and what the stage imports must
be installed in its own.
"""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from evenload.errors import ConfigError, ResourceExhausted, quoted
from evenload.pipeline.plan import Fit
from evenload.pipeline.stage import Item, ModelFolder, StageOutput, StageSetup
from evenload.pipeline.stage_runner import StageRunner, save
from evenload.pipeline.target import CodeTarget

BOOT = """
import importlib.util, sys
home = {home!r}
find = importlib.util.spec_from_file_location
spec = find("evenload", home + "/__init__.py", submodule_search_locations=[home])
sys.modules["evenload"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from evenload.pipeline.worker.foreign_python import serve
serve()
"""


class ForeignStageRunner:
    """A runner whose stage lives in another interpreter; ConfigError if that cannot start."""

    def __init__(self, setup: StageSetup, device: Any, fit: Fit, n_devices: int):
        self.setup = setup
        seen = {"id": device.id, "torch": device.torch, "threads": getattr(device, "threads", 1)}
        plain = json.loads(json.dumps(dataclasses.asdict(setup), default=str))
        self._hello = {
            "setup": plain, "device": seen, "fit": dataclasses.asdict(fit), "n_devices": n_devices
        }  # fmt: skip
        self._process: subprocess.Popen[str] | None = None
        self._start()

    def lane(self) -> None:
        """Return None: the stage takes one item at a time."""

    can_batch = gives_keys = False

    def call(self, inputs: Mapping[str, Any], item: Item, place: str = "") -> StageOutput:
        """Call the stage for an item, as ``StageRunner.call``; its files are on disk already.

        An error of the stage is raised again as a RuntimeError of the same type name and message.
        """
        if self._process is None:
            self._start()
        answer = self._ask({"inputs": dict(inputs), "item": dataclasses.asdict(item), "place": place})
        return StageOutput(answer["outputs"], answer["files"], [], tuple(answer["reads"]))

    def close(self) -> None:
        """End the interpreter; kill it if that takes longer than five seconds."""
        if self._process is not None:
            process, self._process = self._process, None
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    stream.close()  # pyrefly: ignore
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self) -> None:
        python = str(self.setup.python)
        if "/" in python:
            python = str(self.setup.folder / python)
        home = str(Path(__file__).parents[2])
        try:
            self._process = subprocess.Popen(
                [python, "-c", BOOT.format(home=home)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
            )
        except OSError as error:
            raise ConfigError(
                f"{python} cannot be started: {error.strerror}", hint="give the interpreter of an environment"
            ) from error
        self._ask(self._hello)

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = ""
        if not line:
            self.close()
            stage, code = self.setup.stage, process.returncode
            raise ConfigError(
                f"{self.setup.python} ended with exit code {code} in stage {quoted(stage)}",
                hint="its last words are in the run's notes; has it numpy and what the stage imports?",
            )
        answer = json.loads(line)
        if "error" in answer:
            kind, message = answer["error"]
            if answer["is_memory"]:
                raise ResourceExhausted(message)
            raise type(kind, (RuntimeError,), {})(message)
        return answer


def serve() -> None:
    """Answer the worker's lines, one by one, until it is gone: the side of the other interpreter."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the stage prints goes to stderr
    runner: StageRunner | None = None
    for line in sys.stdin:
        question = json.loads(line)
        try:
            if runner is None:
                runner, answer = _build_runner(question), {}
            else:
                made = runner.call(question["inputs"], Item(**question["item"]), question["place"])
                save(made)
                answer = {"outputs": made.outputs, "files": made.files, "reads": made.reads}
        except Exception as error:
            from evenload.executor.task.failure import Failure, is_memory_error

            failure = Failure.of(error, travels=False)
            sys.stderr.write(failure.traceback)
            answer = {"error": [failure.type_name, failure.message], "is_memory": is_memory_error(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    if runner is not None:
        runner.close()


def _build_runner(hello: dict[str, Any]) -> StageRunner:
    plain = dict(hello["setup"])
    target = plain["target"]
    file = Path(target["file"]) if target["file"] else None
    plain["target"] = CodeTarget(target["module"], target["name"], file, tuple(map(Path, target["path"])))
    plain["model"] = ModelFolder(**plain["model"]) if plain["model"] else None
    plain["sources"] = tuple((file, digest) for file, digest in plain["sources"])
    for name in ("folder", "run_folder"):
        plain[name] = Path(plain[name])
    given = hello["fit"].items()
    fit: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in given}
    return StageRunner(
        StageSetup(**plain), SimpleNamespace(**hello["device"]), Fit(**fit), hello["n_devices"]
    )
