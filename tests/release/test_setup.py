"""What a newcomer's first command does: ``scripts/setup.py``."""

import importlib.util
import subprocess
import sys
import venv
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[2] / "scripts" / "setup.py"


@pytest.mark.parametrize("left", ["nothing", "a Python without pip"])
def test_whatever_an_earlier_try_has_left_there_is_pip(left, tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("setup_of_evenload", FILE)
    setup = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, setup)
    spec.loader.exec_module(setup)
    place = tmp_path / ".venv"
    if left == "a Python without pip":  # as on Debian without python3-venv
        venv.create(place, with_pip=False)
    for name, value in {"ROOT": tmp_path, "VENV": place, "BIN": place / "bin"}.items():
        monkeypatch.setattr(setup, name, value)
    monkeypatch.setattr(setup, "install", lambda purpose: None)
    assert setup.main(["demo"]) == 0
    subprocess.run([place / "bin" / "python", "-m", "pip", "--version"], check=True, timeout=500)
