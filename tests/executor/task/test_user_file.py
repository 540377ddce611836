import sys

import pytest

from evenload.errors import ConfigError
from evenload.executor.task.user_file import import_file


def test_a_file_is_a_module_under_the_name_given(tmp_path):
    (tmp_path / "signal.py").write_text("value = __name__")
    try:
        assert import_file(tmp_path / "signal.py", "of:signal").value == "of:signal"
        assert "of:signal" in sys.modules
    finally:
        sys.modules.pop("of:signal", None)


def test_a_module_that_raises_is_not_kept(tmp_path):
    (tmp_path / "bad.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError):
        import_file(tmp_path / "bad.py", "of:bad")
    assert "of:bad" not in sys.modules


def test_another_kind_of_file_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ConfigError, match="no Python file"):
        import_file(tmp_path / "notes.txt", "of:notes")
