"""What a newcomer's first command does: ``scripts/setup.py``."""

import importlib.util
import subprocess
import sys
import venv
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "scripts" / "setup.py"


def test_where_an_earlier_try_has_left_a_python_without_pip_there_is_pip(tmp_path, monkeypatch):
    """As on Debian without python3-venv. Where nothing is left, the same line makes all of it."""
    spec = importlib.util.spec_from_file_location("setup_of_evenload", FILE)
    setup = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, setup)
    spec.loader.exec_module(setup)
    place = tmp_path / ".venv"
    venv.create(place, with_pip=False)
    for name, value in {"ROOT": tmp_path, "VENV": place, "BIN": place / "bin"}.items():
        monkeypatch.setattr(setup, name, value)
    monkeypatch.setattr(setup, "install", lambda purpose: None)
    assert setup.main(["demo"]) == 0
    subprocess.run([place / "bin" / "python", "-m", "pip", "--version"], check=True, timeout=500)
