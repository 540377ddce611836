"""Where this user's own files belong, and that nothing ends for want of a home."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evenload._user_folders import user_folder
from evenload.errors import ConfigError
from evenload.native import store

MULTIPLIER = Path(__file__).parent / "data/zk/multiplier"


def test_the_variable_counts_if_it_is_absolute(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    named = {"XDG_CACHE_HOME": "/elsewhere"}
    assert user_folder("XDG_CACHE_HOME", ".cache", named) == Path("/elsewhere/evenload")
    for text in ("", "relative", "./here", "~/x"):
        found = user_folder("XDG_CACHE_HOME", ".cache", {"XDG_CACHE_HOME": text})
        assert found == tmp_path / ".cache" / "evenload"


HOMES = ["", "relative", "./relative", "/there-is-no-such-home/x", "/dev/null", "/proc/1"]


@pytest.mark.skipif(os.name != "posix", reason="HOME is POSIX's")
@pytest.mark.parametrize("home", HOMES)
def test_a_home_that_is_not_there_is_not_made(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    folder = user_folder("XDG_CACHE_HOME", ".cache")
    with pytest.raises(OSError, match="Errno"):
        folder.mkdir(parents=True)
    with pytest.raises(OSError, match="Errno"):
        (folder / "file").read_bytes()
    monkeypatch.delenv("EVENLOAD_KERNEL_CACHE", raising=False)
    assert store.kept("name", "key", lambda: b"code") == (b"code", False)
    assert not list(tmp_path.iterdir())
    assert not Path("/there-is-no-such-home").exists()


@pytest.mark.skipif(os.name != "posix", reason="HOME is POSIX's")
def test_a_user_without_an_entry_and_without_a_home_has_none(monkeypatch):
    def no_entry() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_entry)
    assert user_folder("XDG_CACHE_HOME", ".cache", {}).parts[:2] == Path(os.devnull).parts[:2]


@pytest.mark.skipif(os.name != "posix", reason="HOME is POSIX's")
def test_a_proof_needs_no_home(tmp_path):
    pytest.importorskip("llvmlite", reason="the extra kernels is not installed")
    taken = {"HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "EVENLOAD_KERNEL_CACHE"}
    environment = {name: text for name, text in os.environ.items() if name not in taken}
    files = [MULTIPLIER / "circuit.zkey", MULTIPLIER / "witness.wtns", "-o", tmp_path]
    done = subprocess.run(
        [sys.executable, "-m", "evenload", "zk", "prove", *files],
        env={**environment, "HOME": "/dev/null"},
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr
    assert "no cache directory to keep checked proving keys in" in done.stderr
    assert (tmp_path / "witness.proof.json").exists()


def test_a_cache_that_others_may_write_is_refused_all_the_same(tmp_path, monkeypatch):
    if os.name != "posix":
        pytest.skip("modes are POSIX's")
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setenv("EVENLOAD_KERNEL_CACHE", str(open_to_all))
    with pytest.raises(ConfigError, match="open to others"):
        store.kept("name", "key", lambda: b"code")
