import json
import os
import time

import pytest

from evenload.devices.probes import child


@pytest.fixture
def script(tmp_path):
    """Makes a probe script that counts its runs in the file ``runs`` beside it."""

    def make(body):
        path = tmp_path / "some_child.py"
        path.write_text(f"open({str(tmp_path / 'runs')!r}, 'a').write('x')\n{body}\n")
        return path

    make.n_runs = lambda: len((tmp_path / "runs").read_text())
    return make


def test_asked_once_and_remembered(script, no_cache):
    path = script("print('noise on stdout'); print([1, 2])")
    assert child.ask_child(path) == [1, 2]
    assert child.ask_child(path) == [1, 2]
    assert script.n_runs() == 1
    assert child.ask_child(path, refresh=True) == [1, 2]
    assert script.n_runs() == 2
    assert len(list(no_cache.iterdir())) == 1


def test_asked_again_when_something_changes(script, no_cache, tmp_path, monkeypatch):
    path, driver = script("print(1)"), tmp_path / "driver"
    child.ask_child(path, depends_on=[driver])
    driver.write_text("installed")
    child.ask_child(path, depends_on=[driver])
    monkeypatch.setenv("VK_DRIVER_FILES", "/other.json")
    child.ask_child(path, depends_on=[driver])
    assert script.n_runs() == 3
    child.ask_child(path, depends_on=[driver])
    monkeypatch.delenv("VK_DRIVER_FILES")
    child.ask_child(path, depends_on=[driver])
    assert script.n_runs() == 3, "each environment has an answer of its own"


def test_old_answers_are_asked_again_and_cleared_away(script, no_cache):
    path = script("print(1)")
    child.ask_child(path)
    (cached,) = no_cache.iterdir()
    cached.write_text(json.dumps({"unix_s": time.time() - 2 * child.MAX_AGE_S, "answer": 0}))
    stale = no_cache / "other_child-00.json"
    stale.write_text("{}")
    os.utime(stale, (0, 0))
    assert child.ask_child(path) == 1
    assert not stale.exists()


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"unix_s": "x", "answer": 0}', '{"answer": 0}'])
def test_a_damaged_cache_is_asked_again(script, no_cache, damage):
    path = script("print(1)")
    child.ask_child(path)
    (cached,) = no_cache.iterdir()
    cached.write_text(damage)
    assert child.ask_child(path) == 1
    assert script.n_runs() == 2


def test_a_cache_that_cannot_be_written_only_costs_time(script, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert child.ask_child(script("print(1)")) == 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
        ("import sys; print('last words', file=sys.stderr); sys.exit(3)", "exit code 3: last words"),
        ("", "said nothing"),
        ("print('hello')", "said nothing"),
    ],
)
def test_a_child_that_dies_is_told_and_not_remembered(script, no_cache, body, words):
    with pytest.raises(child.ChildFailed, match=words):
        child.ask_child(script(body))
    assert not no_cache.exists() or not list(no_cache.iterdir())


def test_a_child_that_hangs_is_ended(script, no_cache, monkeypatch):
    monkeypatch.setattr(child, "TIMEOUT_S", 0.2)
    with pytest.raises(child.ChildFailed, match="a driver hangs"):
        child.ask_child(script("import time; time.sleep(60)"))
