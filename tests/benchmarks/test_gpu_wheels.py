"""Wheels that ``benchmarks/gpu.py`` unpacks: those that fit, whole, and nowhere but in their folder."""

import base64
import hashlib
import importlib
import os
import platform
import random
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.tags import parse_tag, sys_tags

ROOT = Path(__file__).parents[2]
LINUX = f"manylinux_2_17_{platform.machine()}"


@pytest.fixture
def wheels(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("gpu_parts.wheels")


def wheel(
    folder: Path, name: str, files: dict[str, bytes], record: str | None = None, compression: int = 0
) -> None:
    """Write a wheel called ``name``, with a record of its files, or the record that is given."""
    folder.mkdir(exist_ok=True)
    rows = [f"{one},sha256={digest(content)},{len(content)}" for one, content in files.items()]
    with zipfile.ZipFile(folder / name, "w", compression) as archive:
        for one, content in files.items():
            archive.writestr(one, content)
        archive.writestr("a.dist-info/RECORD", "\n".join(rows) if record is None else record)


def digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def test_what_fits_is_unpacked_unless_it_is_installed(wheels, tmp_path):
    wheel(tmp_path / "in", "planted_one-1.0-py3-none-any.whl", {"planted_one/__init__.py": b"x = 1"})
    wheel(tmp_path / "in", "numpy-1.0-py3-none-any.whl", {"numpy/__init__.py": b"x = 1"})
    assert wheels.unpack_wheels(tmp_path / "in", tmp_path / "out") == []
    assert (tmp_path / "out" / "planted_one" / "__init__.py").read_bytes() == b"x = 1"
    assert not (tmp_path / "out" / "numpy").exists()


@pytest.mark.parametrize(
    ("name", "files", "record", "said"),
    [
        ("a-1-cp27-cp27m-win32.whl", {}, None, "not for Python"),
        ("nonsense.whl", {}, None, "no name of a wheel"),
        ("a-1-py3-none-any.whl", {"a.py": b"1"}, "a.py,sha256=xx,1", "not as its record says"),
        ("a-1-py3-none-any.whl", {"a.py": b"1"}, "", "not as its record says"),
        ("a-1-py3-none-any.whl", {"../../a.py": b"1"}, None, "outside of the package"),
        ("a-1-py3-none-any.whl", {"/tmp/a.py": b"1"}, None, "outside of the package"),
    ],
)
def test_what_does_not_fit_or_is_damaged_is_refused(wheels, tmp_path, name, files, record, said):
    wheel(tmp_path / "in", name, files, record)
    (refused,) = wheels.unpack_wheels(tmp_path / "in", tmp_path / "out")
    assert refused.startswith(name)
    assert said in refused
    assert not [path for path in tmp_path.rglob("*.py") if path.is_file()]


def test_a_file_cut_short_and_an_empty_folder_are_told(wheels, tmp_path):
    assert wheels.unpack_wheels(tmp_path / "none", tmp_path) == [f"no wheel is in {tmp_path / 'none'}"]
    wheel(tmp_path / "in", "a-1-py3-none-any.whl", {"a.py": b"1" * 1000})
    path = tmp_path / "in" / "a-1-py3-none-any.whl"
    whole = path.read_bytes()
    for n in range(0, len(whole), 97):
        path.write_bytes(whole[:n])
        (refused,) = wheels.unpack_wheels(tmp_path / "in", tmp_path / "out")
        assert refused.startswith(path.name)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_any_damage_is_told_and_nothing_else(wheels, tmp_path, compression):
    dice = random.Random(compression)
    wheel(tmp_path / "in", "a-1-py3-none-any.whl", {"a.py": dice.randbytes(300)}, compression=compression)
    path = tmp_path / "in" / "a-1-py3-none-any.whl"
    whole = path.read_bytes()
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        path.write_bytes(damaged)
        refused = wheels.unpack_wheels(tmp_path / "in", tmp_path / "out")
        assert all(one.startswith(path.name) for one in refused)
    (tmp_path / "in" / "b-1-py3-none-any.whl").mkdir()
    os.mkfifo(tmp_path / "in" / "c-1-py3-none-any.whl")
    path.unlink()
    refused = wheels.unpack_wheels(tmp_path / "in", tmp_path / "out")
    assert [one.rpartition(" ")[2] for one in refused] == ["file", "file"]
    wheel(tmp_path / "in", "d-1-py3-none-any.whl", {"d.py": b""}, record=f'd.py,"{"x" * 200_000}"')
    assert any("field limit" in one for one in wheels.unpack_wheels(tmp_path / "in", tmp_path / "out"))


def test_tags_are_those_of_packaging(wheels):
    ours = set(sys_tags())
    for tag in ours:
        if "linux" in tag.platform or tag.platform == "any":
            assert wheels.fits(tag.interpreter, tag.abi, tag.platform), tag
    minor = sys.version_info.minor
    for python in (
        "py2",
        "py3",
        f"py3{minor + 1}",
        f"cp3{minor}",
        f"cp3{minor - 1}",
        f"cp3{minor + 1}",
        "pp310",
    ):
        for abi in ("none", "abi3", f"cp3{minor}", f"cp3{minor}t", f"cp3{minor - 1}"):
            for system in ("any", LINUX, "win_amd64", "manylinux_2_17_s390x", "musllinux_1_2_x86_64"):
                if (system == "any") != (abi == "none"):
                    continue  # nobody makes these
                (tag,) = parse_tag(f"{python}-{abi}-{system}")
                assert wheels.fits(python, abi, system) == (tag in ours), tag
