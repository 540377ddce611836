"""``evenload warm``: what it makes, and what it says about it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from evenload.cli import warm as module
from evenload.errors import MissingExtra, UnknownName
from evenload.native.objects import Origin, origins


def call(*args):
    return CliRunner().invoke(module.warm, list(args), standalone_mode=False)


@pytest.fixture
def parts(monkeypatch):
    """Two parts: one that loads two programs, one that lacks its extra."""

    def good():
        origins.extend([Origin("one", "shipped", 0.1), Origin("two", "compiled", 2.0)])

    def bad():
        raise MissingExtra("'torch' is not installed", hint="pip install")

    monkeypatch.setattr(module, "PARTS", {"good": good, "bad": bad})
    known = len(origins)
    yield
    del origins[known:]


def test_it_says_where_each_parts_code_came_from(parts):
    done = call()
    first, second = done.stdout.splitlines()
    assert (done.return_value, first.startswith("good     ready after 0.")) == (0, True)
    assert first.endswith("(1 shipped, 1 compiled)")
    assert second == "bad      left out: 'torch' is not installed"
    told = json.loads(call("--json").stdout)
    assert told["schema"] == 1
    assert told["parts"]["good"] | {"wall_s": 0} == {"shipped": 1, "cached": 0, "compiled": 1, "wall_s": 0}
    assert told["parts"]["bad"] == {"left_out": "'torch' is not installed"}


def test_a_part_that_is_asked_for_must_be_possible_and_known(parts):
    assert isinstance(call("bad").exception, MissingExtra)
    assert isinstance(call("cooking").exception, UnknownName)


@pytest.mark.parametrize("part", ["moe", "zk", "merkle"])
def test_a_part_loads_what_it_runs(part, monkeypatch, tmp_path):
    pytest.importorskip("numba", reason="the extra kernels is not installed")
    told = json.loads(call(part, "--json").stdout)["parts"][part]
    assert set(told) == {"shipped", "cached", "compiled", "wall_s"}


def test_a_proving_key_is_kept(tmp_path, monkeypatch):
    pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
    monkeypatch.setenv("EVENLOAD_KERNEL_CACHE", str(tmp_path))
    key = Path(__file__).parents[1] / "data" / "zk" / "multiplier" / "circuit.zkey"
    done = call("--key", str(key), "--json")
    page = json.loads(done.stdout)
    assert page["parts"] == {}
    assert list(page["keys"]) == [str(key)]
    assert len(list(tmp_path.glob("keys/*.key"))) == 1
