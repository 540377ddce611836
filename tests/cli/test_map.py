"""``evenload map`` as a person or a script meets it."""

import io
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from evenload import cli
from evenload.cli.options import page_json

MODULE = """
import dataclasses, os, time

@dataclasses.dataclass
class Point:
    x: int

def double(x):
    if x == 3:
        raise ValueError("three\\nand more")
    return 2 * x

def lengths(lines):
    return [len(line) for line in lines]

def odd(x):
    return {0: {1, 2}, 1: Point(5), 2: object(), 3: float(1)}[x]

class Adder:
    def __init__(self, device):
        self.device = device.id
    def __call__(self, x):
        return [self.device, x + 1]
    class Inner:
        pass

def slow(x):
    time.sleep(0.05)
    return x

def held(x):
    while not os.path.exists("go"):
        time.sleep(0.02)
    return x

def inverse(line):
    return 1 / int(line)

def crash(x):
    os._exit(9) if x == 1 else None
    return x
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mapped.py").write_text(MODULE)
    (tmp_path / "numbers.jsonl").write_text("1\n2\n\n3\n4\n")
    (tmp_path / "words.txt").write_text("one\nthree\n")
    yield tmp_path
    sys.modules.pop("mapped", None)


@pytest.fixture
def evenload(command):
    return partial(command, "map", "--devices", "cpu*2")


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("backend", ["inline", "process"])
def test_rows_in_order_failures_listed_exit_code_one(folder, evenload, backend):
    code, out, err = evenload("mapped:double", "numbers.jsonl", "--backend", backend, "--no-progress")
    assert code == 1
    assert rows(out) == [
        {"index": 0, "result": 2},
        {"index": 1, "result": 4},
        {"index": 2, "error": {"type": "ValueError", "message": "three\nand more"}},
        {"index": 3, "result": 8},
    ]
    assert "failed: item 2: ValueError: three\n" in err
    assert "3 of 4 done" in err
    assert "on 2 devices" in err
    page = json.loads(evenload("mapped:double", "numbers.jsonl", "--backend", backend, "--json", "-q")[1])
    assert (page["rows"], page["failed"]) == (rows(out), [rows(out)[2]])


def test_a_file_gets_the_rows_and_json_the_summary(folder, evenload):
    (folder / "out.jsonl").write_text("from an earlier run")
    options = ("--batch", "2", "-o", "out.jsonl", "--json", "-q", "--backend", "inline")
    code, out, err = evenload("mapped.py:lengths", "words.txt", *options)
    assert (code, err) == (0, "")
    assert rows((folder / "out.jsonl").read_text()) == [{"index": 0, "result": 3}, {"index": 1, "result": 5}]
    page = json.loads(out)
    assert (page["schema"], page["status"], page["failed"], page["out"]) == (1, "done", [], "out.jsonl")
    assert (page["summary"]["total"], page["summary"]["bound_s"] > 0) == (2, True)
    assert not (folder / "out.jsonl.part").exists()


def test_a_class_is_built_on_each_device_and_stdin_is_read(folder, evenload, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"5\n6\n")))
    code, out, _ = evenload("mapped:Adder", "-", "--format", "jsonl", "--unordered", "-q")
    assert code == 0
    assert {row["index"]: row["result"][1] for row in rows(out)} == {0: 6, 1: 7}
    assert {row["result"][0] for row in rows(out)} <= {"cpu:0", "cpu:1"}


def test_results_that_are_nearly_json_and_some_that_are_not(folder, evenload):
    (folder / "items.json").write_text("[0, 1, 2, 3]")
    code, out, err = evenload("mapped:odd", "items.json", "--backend", "inline")
    got = rows(out)
    assert code == 1
    assert [row.get("result") for row in got] == [[1, 2], {"x": 5}, None, 1.0]
    assert "a object is no JSON" in got[2]["error"]["message"]
    assert "item 2" in err
    assert "3 of 4 done" in err
    code, out, _ = evenload("mapped:odd", "items.json", "--backend", "inline", "--json", "--run", "run")
    page = json.loads(out)
    assert (page["summary"]["done"], page["summary"]["failed"]) == (3, len(page["failed"])) == (3, 1)
    failed = [row for row in rows((folder / "run/events.jsonl").read_text()) if row["event"] == "ItemFailed"]
    assert [row["index"] for row in failed] == [2]


def strict(text: str) -> Any:
    """Parse JSON as any parser does; Python's own takes NaN and Infinity, too."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON: {text[:200]}")

    return json.loads(text, parse_constant=refuse)


def test_numbers_that_are_not_finite_are_null(folder, evenload):
    """Oracle: a parser that takes JSON and nothing else, and JSON's own word for what is not there."""
    odd = "ODD = [math.nan, {'x': [math.inf, 1]}, numpy.array([1.5, -math.inf])]"
    (folder / "endless.py").write_text(f"import math, numpy\n{odd}\ndef odd(x):\n    return ODD[x]\n")
    (folder / "items.json").write_text("[0, 1, 2]")
    line = ("endless:odd", "items.json", "--backend", "inline")
    found = [None, {"x": [None, 1]}, [1.5, None]]
    assert [strict(one)["result"] for one in evenload(*line)[1].splitlines()] == found
    assert [row["result"] for row in strict(evenload(*line, "--json")[1])["rows"]] == found
    evenload(*line, "-o", "out.jsonl")
    assert [strict(one)["result"] for one in (folder / "out.jsonl").read_text().splitlines()] == found


@given(st.recursive(st.floats(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)))
def test_pages_of_commands_are_json(page):
    """Oracle: the same."""
    strict(page_json(page))


def test_all_commands_print_json_in_that_way():
    """Oracle: the source: who wrote JSON in another way would have to look after such numbers alone."""
    others = {"item_files.py", "proof_app.py", "init.py"}  # rows, and files that hold texts and schemas
    sources = [one for one in Path(cli.__file__).parent.rglob("*.py") if one.name not in others]
    assert len(sources) > 30
    assert not [one.name for one in sources if "json.dumps(" in one.read_text(encoding="utf-8")]


def test_stopping_at_the_first_error(folder, evenload):
    (folder / "many.jsonl").write_text("\n".join(["3"] + ["1"] * 5000))
    options = ("--on-error", "stop", "--policy", "pull", "--backend", "inline")
    code, out, _ = evenload("mapped:double", "many.jsonl", *options)
    assert code == 1
    assert 1 <= len(rows(out)) < 5000


def test_a_crash_costs_one_item(folder, evenload):
    code, out, err = evenload("mapped:crash", "numbers.jsonl", "--once")
    got = rows(out)
    assert code == 1
    assert got[0]["error"]["type"] == "WorkerLost"
    assert [row.get("result") for row in got[1:]] == [2, 3, 4]
    assert "exit code 9" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mapped:doubl", "words.txt"), "did you mean 'double'"),
        (("mapped", "words.txt"), "is not module:function"),
        (("maped:double", "words.txt"), "no module 'maped'"),
        (("nofile.py:double", "words.txt"), "there is no file nofile.py"),
        (("mapped:double", "nofile.txt"), "nofile.txt cannot be read"),
        (("broken.py:f", "words.txt"), "broken.py cannot be imported: ZeroDivisionError"),
        (("leaves.py:f", "words.txt"), "leaves.py cannot be imported: it ends the program, sys.exit(5)"),
        (("leaves:f", "words.txt"), "leaves cannot be imported: it ends the program, sys.exit(5)"),
        (("mapped:double", "words.txt", "--policy", "mesured"), "did you mean 'measured'"),
        (("mapped:double", "words.txt", "--backend", "proces"), "did you mean 'process'"),
        (("mapped:double", "words.txt", "--batch", "0"), "--batch"),
        (("mapped:double", "words.txt", "--timeout", "-1"), "--timeout -1.0 leaves no time"),
        (("mapped:double", "words.txt", "--resume"), "--resume does not know which run"),
        (("mapped:double", "words.txt", "-o", "no/folder/out"), "cannot be written"),
        (("mapped:double", "words.txt", "-o", "link.txt"), "would overwrite what is read"),
        (("mapped.py:double", "words.txt", "-o", "sub/../mapped.py"), "would overwrite what is read"),
        (("mapped:double", "words.txt", "--run", "R", "-o", "R/events.jsonl"), "would overwrite what"),
        (("mapped:double", "words.txt", "--journal", "J", "-o", "J/journal.json"), "would overwrite what"),
        (("mapped:double", "words.txt", "-o", ""), "names nothing"),
        (("mapped:Adder.Inner", "words.txt", "--devices", "cpux"), "cpux"),
    ],
)
def test_what_cannot_work_is_refused_with_exit_code_two(folder, evenload, arguments, words):
    (folder / "broken.py").write_text("1 / 0")
    (folder / "leaves.py").write_text("import sys; sys.exit(5)")
    (folder / "link.txt").symlink_to("words.txt")
    (folder / "sub").mkdir()
    code, out, err = evenload(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["latin.txt", "cut.jsonl", "deaf.txt"])
def test_what_ends_by_an_error_leaves_the_rows_of_an_earlier_run(folder, evenload, name):
    (folder / "out.jsonl").write_text("from an earlier run")
    (folder / "latin.txt").write_bytes(b"one\ntwo\n\xe9\n")
    (folder / "cut.jsonl").write_text('1\n{"a": \n3\n')
    (folder / "deaf.txt").write_text("one")
    raises = "class Deaf:\n    def __init__(self):\n        raise RuntimeError('no')\n"
    (folder / "deaf.py").write_text(f"{raises}    def __call__(self, x):\n        return x\n")
    target = "deaf.py:Deaf" if name == "deaf.txt" else "mapped.py:double"
    code, _, err = evenload(target, name, "-o", "out.jsonl", "--devices", "cpu*1")
    assert code == (3 if name == "deaf.txt" else 2)
    assert (folder / "out.jsonl").read_text() == "from an earlier run"
    part = folder / "out.jsonl.part"
    assert part.exists() == ("the rows are in" in err)
    assert not part.exists() or rows(part.read_text())


def test_two_at_once_do_not_write_one_file(folder, evenload, popen, until):
    command = [sys.executable, "-m", "evenload", "map", "mapped:slow", "many.jsonl", "-o", "out.jsonl"]
    (folder / "many.jsonl").write_text("\n".join(map(str, range(10_000))))
    first = popen([*command, "--devices", "cpu*1", "-q"], start_new_session=True)
    part = folder / "out.jsonl.part"
    until(lambda: part.exists() and part.stat().st_size, "the first one writes")
    code, _, err = evenload("mapped:double", "numbers.jsonl", "-o", "out.jsonl", "--backend", "inline")
    assert (code, "another program writes" in err) == (2, True)
    os.killpg(first.pid, signal.SIGINT)
    first.communicate(timeout=550)
    got = rows((folder / "out.jsonl").read_text())
    assert [row["index"] for row in got] == [row["result"] for row in got]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_rows_are_json_of_the_same_values_in_every_encoding(folder, evenload, monkeypatch, encoding):
    """Oracle: a parser of JSON, which is written in UTF-8; a mark of the order of bytes is no text."""
    (folder / "said.txt").write_bytes(b"\xef\xbb\xbf" + "é 漢\nplain\n".encode())
    said = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(said, encoding, write_through=True))
    evenload("builtins:str", "said.txt", "-q", "--backend", "inline")
    assert [row["result"] for row in rows(said.getvalue().decode("utf-8"))] == ["é 漢", "plain"]


@pytest.mark.parametrize(("closed", "says"), [("<&-", "standard input"), (">&-", "standard output")])
def test_a_stream_that_is_closed_is_refused(folder, closed, says):
    words = [sys.executable, "-m", "evenload", "map", "builtins:str", "-", "--backend", "inline"]
    line = ["sh", "-c", f'"$@" {closed}', "sh", *words]
    ended = subprocess.run(line, input="one", capture_output=True, text=True, timeout=500)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"{says} is closed" in ended.stderr


def test_resume_goes_on_where_it_was(folder, evenload):
    (folder / "noted.py").write_text("def f(x):\n    open('ran', 'a').write(f'{x}\\n')\n    return 1 / x\n")
    (folder / "in.jsonl").write_text("1\n2\n0\n4\n")
    options = ("noted.py:f", "in.jsonl", "-o", "out.jsonl", "--resume", "--policy", "pull")
    for failed in (1, 1):
        code, _, err = evenload(*options)
        assert code == failed
        assert [row.get("result") for row in rows((folder / "out.jsonl").read_text())] == [1, 0.5, None, 0.25]
    assert "3 of 4 done" in err
    assert "3 of them before" in err
    assert sorted((folder / "ran").read_text().split()) == ["0", "0", "1", "2", "4"]
    (folder / "in.jsonl").write_text("1\n2\n5\n4\n")
    code, _, err = evenload(*options, "--journal", "out.jsonl.journal")
    assert (code, (folder / "ran").read_text().split()[-1]) == (0, "5")
    (folder / "in.jsonl").write_text("1\n3\n5\n4\n")
    code, _, err = evenload(*options)
    assert code == 2
    assert "item 1, or the code behind it, is not that" in err
    assert evenload(*options, "--on-change", "rerun")[0] == 0
    assert (folder / "ran").read_text().split()[-1] == "3"


def test_a_run_folder_has_the_events_the_journal_and_an_ear(folder, command, popen, until):
    (folder / "many.jsonl").write_text("\n".join(map(str, range(200))))
    line = [sys.executable, "-m", "evenload", "map", "mapped:held", "many.jsonl", "--devices", "cpu*2"]
    options = ["--run", "tonight", "--resume", "-q", "-o", "out.jsonl"]
    program = popen([*line, *options], stderr=subprocess.PIPE, text=True)
    until((folder / "tonight" / "control" / "owner").exists, "the run can be told")
    assert command("devices", "drain", "cpu:0", "--run", "tonight")[:2] == (0, "cpu:1\n")
    (folder / "go").touch()
    assert program.communicate(timeout=550)[1] == ""
    assert program.returncode == 0
    assert len(rows((folder / "out.jsonl").read_text())) == 200
    events = (folder / "tonight" / "events.jsonl").read_text()
    assert '"event":"RunFinished"' in events
    assert '"event":"WorkerExited"' in events
    assert (folder / "tonight" / "journal" / "segment-000001").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_once_keeps_what_is_finished(folder, number, popen, until):
    (folder / "many.jsonl").write_text("\n".join(map(str, range(10_000))))
    command = [sys.executable, "-m", "evenload", "map", "mapped:slow", "many.jsonl", "-o", "out.jsonl"]
    program = popen(
        [*command, "--devices", "cpu*2", "--json", "--no-progress"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    part = folder / "out.jsonl.part"

    def has_a_result() -> bool:
        assert program.poll() is None, program.communicate(timeout=500)
        return part.exists() and part.stat().st_size > 0

    until(has_a_result, "a result is written")
    os.killpg(program.pid, number)
    out, err = program.communicate(timeout=550)
    assert program.returncode == 130
    assert "press Ctrl-C again" in err
    page = json.loads(out)
    got = rows((folder / "out.jsonl").read_text())
    assert page["status"] == "interrupted"
    assert page["summary"]["done"] == len(got) > 0
    assert page["summary"]["total"] == 10_000
    assert [row["index"] for row in got] == [row["result"] for row in got]


@pytest.mark.parametrize(
    ("name", "backend"),
    [*((name, "process") for name in ("signal", "pickle")), ("random", "inline"), ("my.script-2", "inline")],
)
def test_a_file_may_have_any_name_and_hides_no_module(folder, evenload, name, backend):
    (folder / "tools").mkdir()
    (folder / "tools" / "queue.py").write_text("raise RuntimeError('not the real one')")
    (folder / "tools" / "beside_it.py").write_text("FACTOR = 3")
    (folder / "tools" / f"{name}.py").write_text(
        "import dataclasses, queue\nfrom beside_it import FACTOR\n"
        "@dataclasses.dataclass\nclass Tripled:\n    n: int\n"
        "def triple(x):\n    return Tripled(FACTOR * x)\n"
    )
    target = f"tools/{name}.py:triple"
    code, out, err = evenload(target, "numbers.jsonl", "--backend", backend, "-q")
    assert (code, err) == (0, "")
    assert [row["result"]["n"] for row in rows(out)] == [3, 6, 9, 12]
    for made in ("beside_it", name, f"evenload_file:{name}"):
        if "tools" in str(getattr(sys.modules.get(made), "__file__", "")):
            del sys.modules[made]


@pytest.mark.parametrize(("task", "first", "code"), [("lengths", "word", 0), ("inverse", "not a number", 1)])
def test_a_reader_that_leaves_early_is_no_error_and_hides_none(folder, popen, task, first, code):
    (folder / "many.txt").write_text(f"{first}\n" + "1\n" * 20_000)
    line = [sys.executable, "-m", "evenload", "map", "--devices", "cpu*2", "--no-progress", "-q"]
    program = popen([*line, f"mapped:{task}", "many.txt"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert program.stdout.readline().startswith(b'{"index": 0')
    program.stdout.close()
    said = program.stderr.read()
    assert program.wait(550) == code
    assert said.startswith(b"failed: item 0: ") if code else said == b""


def test_a_command_that_ends_does_not_wait_for_its_input(folder, popen):
    line = [sys.executable, "-m", "evenload", "map", "--devices", "cpu*1", "--no-progress", "-q"]
    program = popen(
        [*line, "mapped:inverse", "-", "--on-error", "stop"],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip
    program.stdin.write(b"not a number\n")
    program.stdin.flush()  # and more may come: its end stays open
    said = program.stderr.read()
    assert program.wait(550) == 1, said
    assert b"Fatal" not in said


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("extra", [(), ("--json",)])
def test_a_full_disk_is_told_in_one_line(folder, evenload, monkeypatch, extra):
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        code, _, err = evenload(
            "mapped:lengths", "--batch", "2", "words.txt", "--backend", "inline", "-q", *extra
        )
    assert (code, err.splitlines()[0].endswith(" cannot be written: No space left on device")) == (1, True)
