"""Paths and values that cannot be used, for every option of any command: said in words, without a number."""

import os
import random
import re
import socket
from pathlib import Path

import click
import numpy as np
import pytest
from every_command import commands
from examples_count import examples

from evenload.events import EventFile, RunFinished, RunStarted, Span

ZK = Path(__file__).parents[1] / "data" / "zk" / "multiplier"
KINDS = ("missing", "folder", "binary", "below a file", "too long", "loop", "of Windows", "unreadable")
KINDS += ("empty", "without a size", "device", "socket", "objects", "objects in a zip")
LINKS = {"unreadable": "/proc/self/mem", "without a size": "/proc/self/maps", "device": os.devnull}
SUFFIXES = (".zkey", ".wtns", ".npy", ".npz", ".safetensors", ".yaml", ".json", ".jsonl", ".csv", ".pt")
ADVICE = ("allow_pickle", "weights_only", "pickle.load")  # of numpy and torch: to run what a file holds
UNUSED = {"clients", "dash", "map"}  # torch | runs until it is stopped | starts workers before it writes


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """What works in the place of each argument or option that is not the bad one."""
    top = tmp_path_factory.mktemp("good")
    with EventFile(top / "events.jsonl") as sink:
        sink(RunStarted(0.0, "r", 0.0, 1, {"a": {}}))
        sink(Span("map", "a", "a", 0, 1, 0.0, 1.0))
        sink(RunFinished(1.0, "done"))
    np.savez(top / "trace.npz", counts=np.ones((2, 1, 4), np.int64))
    (top / "lines").write_text("1\n2\n")
    found = dict.fromkeys(("run", "source", "traces", "other"), str(top))
    found |= dict.fromkeys(("zkey", "key"), str(ZK / "circuit.zkey"))
    found |= {"witnesses": str(ZK / "witness.wtns"), "inputs": str(ZK / "multiplier.input.json")}
    found |= {"r1cs": str(ZK / "multiplier.r1cs"), "trace": str(top / "trace.npz")}
    found |= {"for_s": "0"}
    found |= {"files": f"{ZK / 'public.json'}\n{ZK / 'proof.json'}", "devices": "a=1,b=2", "target": "len"}
    return found | {"": str(top / "lines"), "integer": "4", "integer range": "4", "text": "x"}


def bad_path(kind: str, folder: Path) -> str:
    path = folder / f"bad{random.choice(SUFFIXES)}"  # any in the end; what fails says which
    if kind == "folder":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(bytes(range(256)))
    elif kind == "below a file":
        path.write_text("x")
        return str(path / "x")
    elif kind == "too long":
        return str(folder / ("x" * 300))
    elif kind == "loop":
        path.symlink_to(path)
    elif kind in LINKS:  # of them /proc/self/mem is a plain file whose first byte is an input/output error
        path.symlink_to(LINKS[kind])
    elif kind == "empty":
        path.touch()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(os.path.relpath(path))  # the whole path may be too long for one
    elif kind.startswith("objects"):
        with path.open("wb") as file:
            (np.savez if kind.endswith("zip") else np.save)(file, np.array([{}], object))
    elif kind == "of Windows":
        return r"C:\runs\x"
    return str(path)


def command_line(command: click.Command, bad: click.Parameter, path: str, good: dict[str, str]) -> list[str]:
    """What the command must be given, with ``path`` for one parameter."""
    options, arguments = [], []
    for one in command.params:
        if one is not bad and not one.required and one.name not in ("witnesses", "for_s"):
            continue  # `moe watch` would go on for ever
        plain = good[""] if isinstance(one.type, click.Path) else good.get(one.type.name, "x")
        if isinstance(one.type, click.Choice):
            plain = str(one.type.choices[0])
        values = (path if one is bad else good.get(str(one.name), plain)).split("\n")
        if isinstance(one, click.Argument):
            arguments += values
        else:
            options += [one.opts[0], *values]
    return [*options, "--", *arguments]


@pytest.mark.parametrize("kind", KINDS)
def test_no_message_has_the_number_of_an_error(kind, good, tmp_path, monkeypatch, command):
    n_refused = 0
    for names, found in commands():
        for one in found.params:
            if names[0] in UNUSED or not isinstance(one.type, click.Path):
                continue
            folder = tmp_path / f"{'-'.join(names)}-{one.name}"
            folder.mkdir()
            monkeypatch.chdir(folder)
            line = [*names, *command_line(found, one, bad_path(kind, folder), good)]
            code, out, err = command(*line)
            assert not any(word in out + err for word in ("Errno", "Traceback", *ADVICE)), line
            if code:
                n_refused += 1
                assert "rror: " in err or f"failed: {line[-1]}" in out, line
            if kind == "of Windows":
                assert (code, os.listdir(folder)) == (2, []), line
    assert n_refused > 25


KEY, WITNESS, INPUT = (str(ZK / name) for name in ("circuit.zkey", "witness.wtns", "multiplier.input.json"))
LINES = {
    "audit": "r",
    "bench": "--quick --only unequal",
    "bench merkle": "--devices cpu*1 --leaves 1024 --runs 1",
    "bench prove": "--devices cpu*1 --proofs 1 --constraints 10",
    "certify": "r",
    "map": "task.py:same lines --backend inline --devices cpu*1 -o out.jsonl",
    "merkle bench": "--devices cpu*1 --leaves 1024 --runs 1",
    "merkle prove": "bin 1 --width 32",
    "merkle root": "bin --width 32",
    "moe bench": "--experts 8 --slots 8 --gpus 2 --layers 1 --repeat 1",
    "moe place": "trace.npz --gpus 2 --slots 4",
    "moe replay": "trace.npz --gpus 2 --slots 4",
    "moe watch": "trace.npz --for 0 --gpus 2 --slots 4",
    "plan": "job.yaml",
    "plan-training": "--devices 1x24GB:rtx4090 --batch 8",
    "run": "job.yaml --backend inline --no-progress",
    "simulate": "--items 5",
    "top": "--once",
    "zk circuit": "--size 4 -o c",
    "zk fullprove": f"c.wasm {INPUT} {KEY}",
    "zk prove": f"{KEY} {WITNESS}",
}
TEXTS = ("bogus", "-1", "nan")
BAD = {"integer": ("-1", "nan", "1.5"), "float": ("nan", "-1"), "text": TEXTS}
BAD |= {"integer range": BAD["integer"], "float range": BAD["float"]}
RIGHT = {  # what has that value is only odd
    *(("audit --collective", text) for text in TEXTS),  # a part of a name
    *((f"run {option}", text) for option in ("--skip", "--sbatch") for text in TEXTS),
    *((f"moe {name} --layers", "-1") for name in ("place", "replay", "watch")),  # a slice: all but the last
    *((f"{name} --seed", "-1") for name in ("simulate", "moe place", "moe replay")),
}
JOB = """
version: 1
job: {name: doubles, inputs: {jsonl: things.jsonl, id: id}}
devices: {use: "cpu*1"}
stages:
  - {name: double, target: "task.py:Double", outputs: {twice: number}}
"""
TASK = """
def same(x):
    return x

class Double:
    def __call__(self, inputs, item):
        return {"twice": 2 * inputs["n"]}
"""


@pytest.fixture
def good_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("r").mkdir()
    with EventFile("r/events.jsonl") as sink:
        sink(RunStarted(0.0, "r", 0.0, 1, {"a": {}}))
        sink(Span("map", "a", "a", 0, 1, 0.0, 1.0))
        sink(RunFinished(1.0, "done"))
    np.savez("trace.npz", counts=np.ones((8, 2, 4), np.int64))
    Path("lines").write_text("1\n2\n")
    Path("bin").write_bytes(bytes(64))
    Path("c.wasm").write_bytes(b"\0asm")
    Path("things.jsonl").write_text('{"id": "a", "n": 1}\n')
    Path("job.yaml").write_text(JOB)
    Path("task.py").write_text(TASK)
    return tmp_path


def cases() -> list[tuple[str, str, str]]:
    """A command, an option of it, and a value that it cannot have."""
    found = []
    for names, command in commands():
        for one in command.params:
            if not isinstance(one, click.Option) or one.is_flag or isinstance(one.type, click.Path):
                continue
            values = ("bogus",) if isinstance(one.type, click.Choice) else BAD[one.type.name]
            found += [(" ".join(names), max(one.opts, key=len), value) for value in values]
    return [one for one in found if one[0] in LINES and (f"{one[0]} {one[1]}", one[2]) not in RIGHT]


def test_what_cannot_be_right_is_a_fault_of_usage(good_folder, command):
    """Oracle: the documented exit code of faults of usage; the value or its option in the message."""
    all_cases, known = cases(), {" ".join(names): found for names, found in commands()}
    for name, option, value in random.Random(5).sample(all_cases, min(examples(1000), len(all_cases))):
        words = LINES[name].split()
        if option in words:
            at = words.index(option)
            del words[at : at + 2]
        line = [*name.split(), f"{option}={value}", *words]
        code, _, said = command(*line)
        assert code == 2, (line, said)
        assert option in said or value in said or option.removeprefix("--") in said, (line, said)
        assert "Traceback" not in said, line
        options = "|".join(str(one.name) for one in known[name].params)
        assert not re.search(rf"(?<![\w.-])({options})=", said), (line, said)


def test_an_option_that_would_be_ignored_is_refused(good_folder, command):
    """Oracle: the same."""
    command("certify", "r")
    for line in (
        "certify r/run.cert.json -o new.json",
        "merkle root bin --width 32 --strategy static",
        "bench --quick --only unequal --devices bogus",
    ):
        assert command(*line.split())[0] == 2, line
    assert not Path("new.json").exists()
