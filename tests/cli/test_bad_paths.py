"""Paths that cannot be used, for every path that any command takes: said in words, without a number."""

import os
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np
import pytest

from evenload.cli import cli, main
from evenload.events import EventFile, RunFinished, RunStarted, Span

ZK = Path(__file__).parents[1] / "data" / "zk" / "multiplier"
KINDS = ("missing", "folder", "binary", "below a file", "too long", "loop", "of Windows", "unreadable")
KINDS += ("empty", "without a size", "device", "socket", "objects", "objects in a zip")
LINKS = {"unreadable": "/proc/self/mem", "without a size": "/proc/self/maps", "device": os.devnull}
SUFFIXES = (".zkey", ".wtns", ".npy", ".npz", ".safetensors", ".yaml", ".json", ".jsonl", ".csv", ".pt")
ADVICE = ("allow_pickle", "weights_only", "pickle.load")  # of numpy and torch: to run what a file holds
UNUSED = {"clients", "dash", "map"}  # torch | runs until it is stopped | starts workers before it writes


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
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


def commands(
    group: click.Command, names: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that is no group, with the words that call it."""
    if not isinstance(group, click.Group):
        yield names, group
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield from commands(found, (*names, name))


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
def test_no_message_has_the_number_of_an_error(kind, good, tmp_path, monkeypatch, capsys):
    n_refused = 0
    for names, command in commands(cli):
        for one in command.params:
            if names[0] in UNUSED or not isinstance(one.type, click.Path):
                continue
            folder = tmp_path / f"{'-'.join(names)}-{one.name}"
            folder.mkdir()
            monkeypatch.chdir(folder)
            line = [*names, *command_line(command, one, bad_path(kind, folder), good)]
            with pytest.raises(SystemExit) as ended:
                main(line)
            said = capsys.readouterr()
            assert "Errno" not in said.out + said.err, line
            assert "Traceback" not in said.err, line
            assert not any(advice in said.out + said.err for advice in ADVICE), line
            if ended.value.code:
                n_refused += 1
                assert "rror: " in said.err or f"failed: {line[-1]}" in said.out, line
            if kind == "of Windows":
                assert (ended.value.code, os.listdir(folder)) == (2, []), line
    assert n_refused > 25
