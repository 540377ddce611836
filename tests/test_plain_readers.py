"""What lies in a folder of models, traces or examples may be a pipe or a device: nobody waits for it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evenload.cli.simulate import read_costs
from evenload.cli.zk import read_key
from evenload.errors import EvenloadError, FormatError
from evenload.merkle.partition import _open_file
from evenload.moe import read_trace
from evenload.moe.search.plan_file import read_plan
from evenload.pipeline.artifacts import open_picture
from evenload.pipeline.job.job_file import load_spec
from evenload.pipeline.job.model_files import faults_of_model
from evenload.pipeline.model.model_size import read_config
from evenload.pipeline.model.safetensors_header import read_header, read_whole_header, weight_bytes
from evenload.report.source import open_run
from evenload.report.trace import read_guest
from evenload.zk.formats.container import open_container


def leaf(path: Path) -> Any:
    from evenload.clients.readers import read_leaf

    return read_leaf(path.parent)


def npz(path: Path) -> Any:
    from evenload.clients.readers import read_npz

    return read_npz(path)


def text(path: Path) -> Any:
    from evenload.clients.readers import read_text

    return read_text([path])


def table(path: Path) -> Any:
    from evenload.pipeline.job.inputs import find_items
    from evenload.pipeline.job.spec_settings import InputsSection

    items, faults, _ = find_items(InputsSection(**{path.suffix[1:]: path.name}), path.parent, 0)
    if faults:
        raise EvenloadError(f"{faults}")
    return items


READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "leaf": ("all_data.json", leaf),
    "npz": ("x.npz", npz),
    "text": ("a.txt", text),
    "header": ("x.safetensors", read_header),
    "whole header": ("x.safetensors", read_whole_header),
    "weights": ("x.safetensors", lambda path: weight_bytes({"weights": "."}, path.parent)),
    "config": ("config.json", read_config),
    "job file": ("job.yaml", load_spec),
    "costs": ("costs.txt", read_costs),
    "trace of another tool": ("a.json", read_guest),
    "packed trace": ("a.json.gz", read_guest),
    "table jsonl": ("items.jsonl", table),
    "table csv": ("items.csv", table),
    "plan json": ("plan.json", read_plan),
    "picture": ("a.png", open_picture),
    "run": ("a.jsonl", open_run),
    "key of a proof": ("vkey.json", read_key),
    "records": ("leaves.bin", lambda path: _open_file(path, 32)),
    "key": ("a.zkey", lambda path: open_container(path, b"zkey", 1, {})),
    **{f"trace{end}": (f"a{end}", read_trace) for end in (".npz", ".npy", ".jsonl", ".json", ".pt")},
}
KINDS: dict[str, Callable[[Path], Any]] = {
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "empty": lambda path: path.write_bytes(b""),
    "deep": lambda path: path.write_bytes(b"[" * 100_000),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_of_its_kind_is_refused_at_once(reader: str, kind: str, tmp_path: Path) -> None:
    if reader in ("leaf", "npz", "text") or reader.endswith(".pt"):
        pytest.importorskip("torch")
    name, read = READERS[reader]
    KINDS[kind](tmp_path / name)
    if reader == "text" and kind in ("empty", "deep"):
        assert len(read(tmp_path / name)) == (kind == "deep")
        return
    if reader == "costs" and kind == "empty":
        assert read(tmp_path / name) == []
        return
    if reader == "records" and kind in ("empty", "deep"):
        assert read(tmp_path / name).size * 32 == (tmp_path / name).stat().st_size
        return
    with pytest.raises((EvenloadError, OSError)):
        read(tmp_path / name)


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_of_a_model_that_is_none_is_named(kind: str, tmp_path: Path) -> None:
    names = ("config.json", "model.safetensors", "model.safetensors.index.json")
    for name in names:
        KINDS[kind](tmp_path / name)
    faults = faults_of_model(tmp_path)
    if kind != "folder":  # folders are looked into
        assert all(any(name in fault for fault in faults) for name in names)
    assert faults
    assert FormatError("; ".join(faults)).message
