"""Run a command-line tool as a stage: it gets the item's values as arguments and writes outputs as files."""

import json
import os
import shutil
import string
import subprocess
import tempfile
from collections import ChainMap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evenload.errors import ConfigError, quoted
from evenload.pipeline.file_types import SavedFile
from evenload.pipeline.stage import Item, StageContext

MOST_TEXT = 2000


class Command:
    """A stage that runs a program for each item, without a shell.

    run         list of words in which ``{column}`` is the item's value, ``{seed}``, ``{id}`` its own,
                and ``{out.name}`` is the path at which to write the output ``name``
    files       suffix of each output file: ``{edited: png}``
    reads_json  the program prints a JSON object of more outputs
    timeout_s   seconds after which it is ended
    It finds its device in CUDA_VISIBLE_DEVICES and EVENLOAD_DEVICE, as every worker does.
    """

    def __init__(
        self,
        context: StageContext,
        *,
        run: Sequence[str],
        files: Mapping[str, str] | None = None,
        reads_json: bool = False,
        timeout_s: float | None = None,
    ):
        if isinstance(run, str) or not run:
            raise ConfigError(f"run: {quoted(run)} is no list of words", hint='write run: ["tool", "{path}"]')
        program = str(run[0])
        beside = context.path(program)
        self._words = [str(beside) if "/" in program and beside.is_file() else program, *map(str, run[1:])]
        if "{" not in program and shutil.which(self._words[0]) is None:
            raise ConfigError(f"there is no program {quoted(program)}", hint="install it, or give its path")
        self._files, self._reads_json, self._timeout_s = dict(files or {}), reads_json, timeout_s
        self._folder = context.folder
        for name, suffix in self._files.items():
            if not str(suffix).isalnum() or not str(name).isidentifier():
                raise ConfigError(
                    f"files: {name}: {suffix} is no name and suffix", hint="write files: {edited: png}"
                )

    def __call__(self, inputs: Mapping[str, Any], item: Item) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="evenload-") as scratch:
            made = {name: Path(scratch) / f"{name}.{suffix}" for name, suffix in self._files.items()}
            out = type("out", (), {name: str(path) for name, path in made.items()})
            # Looked up one by one: what no word asks for, the result does not depend on.
            values = ChainMap[str, Any]({"out": out}, _ItemValues(item), inputs)  # pyrefly: ignore
            done = self._finished([_filled(word, values) for word in self._words])
            outputs: dict[str, Any] = self._printed(done.stdout) if self._reads_json else {}
            for name, path in made.items():
                if not path.is_file():
                    raise ConfigError(
                        f"{self._words[0]} wrote no file for {quoted(name)}",
                        hint=f"let it write to {{out.{name}}}",
                    )
                outputs[name] = SavedFile(path.read_bytes())
            return outputs

    def _finished(self, words: list[str]) -> Any:
        done = subprocess.run(
            words, cwd=self._folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=self._timeout_s,
            env=os.environ.copy(), check=False,
        )  # fmt: skip
        if done.returncode:
            said = (done.stderr or done.stdout).decode(errors="replace").strip()[-MOST_TEXT:]
            raise RuntimeError(
                f"{words[0]} ended with exit code {done.returncode}: {said or 'it said nothing'}"
            )
        return done

    def _printed(self, stdout: bytes) -> dict[str, Any]:
        try:
            outputs = json.loads(stdout)
            assert isinstance(outputs, dict)
        except (ValueError, AssertionError) as error:
            shown = stdout.decode(errors="replace").strip()[:200]
            raise ConfigError(
                f"{self._words[0]} printed {quoted(shown)}, which is no JSON object",
                hint="print one, or reads_json: false",
            ) from error
        return outputs


class _ItemValues(dict[str, Any]):
    """The ``seed`` and ``id`` of an item, read when they are asked for."""

    def __init__(self, item: Item):
        super().__init__(seed=None, id=None)
        self._item = item

    def __getitem__(self, name: str) -> Any:
        super().__getitem__(name)
        return getattr(self._item, name)


def _filled(word: str, values: Mapping[str, Any]) -> str:
    try:
        return string.Formatter().vformat(word, (), values)
    except (KeyError, AttributeError, IndexError, ValueError) as error:
        raise ConfigError(
            f"{quoted(word)} asks for {error}, which the item does not have",
            hint=f"columns: {', '.join(name for name in values if name != 'out')}",
        ) from error
