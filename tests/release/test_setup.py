"""What a newcomer's first command does: ``scripts/setup.py``."""

import os
import subprocess
import sys
import venv

import pytest
from loaded_programs import load


@pytest.fixture
def setup():
    return load("scripts/setup.py")


def test_where_an_earlier_try_has_left_a_python_without_pip_there_is_pip(tmp_path, monkeypatch, setup):
    """As on Debian without python3-venv. Where nothing is left, the same line makes all of it."""
    place = tmp_path / ".venv"
    venv.create(place, with_pip=False)
    for name, value in {"ROOT": tmp_path, "VENV": place, "BIN": place / "bin"}.items():
        monkeypatch.setattr(setup, name, value)
    monkeypatch.setattr(setup, "install", lambda purpose: None)
    assert setup.main(["demo"]) == 0
    subprocess.run([place / "bin" / "python", "-m", "pip", "--version"], check=True, timeout=500)


def test_uv_looks_where_pip_is_told_to(tmp_path, setup):
    """Pip itself says what it was told, by a file and by variables, of which the latter count."""
    file = tmp_path / "pip.conf"
    file.write_text("[global]\nindex-url = https://a/simple\nretries = 3\nfind-links =\n  /one\n  /two\n")
    own = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    env = {**own, "PIP_CONFIG_FILE": str(file), "XDG_CONFIG_DIRS": str(tmp_path), "HOME": str(tmp_path)}
    for more, index in ({}, "https://a/simple"), ({"PIP_INDEX_URL": "https://b/simple"}, "https://b/simple"):
        settings = setup.uv_settings(listed({**env, **more}))
        assert settings["UV_DEFAULT_INDEX"] == index
        assert settings["UV_FIND_LINKS"] == "/one,/two"
    assert setup.uv_settings(listed({**env, "PIP_PREFIX": "/elsewhere"})) is None


def listed(env):
    command = [sys.executable, "-m", "pip", "config", "list"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
