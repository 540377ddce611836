"""``benchmarks/gpu.py``: parts that hang, die, fork or write nonsense end, and keep what they measured."""

import json
import os
import random
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
RUNNER = """
import sys
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
import gpu
gpu.FOLDER, gpu.LEAST_S, gpu.LAST_S = Path({folder!r}), 0.0, 0.0
gpu.PARTS = tuple(gpu.Measured(*part) for part in {parts!r})
sys.exit(gpu.main(sys.argv[1:]))
"""
BEGINS = """
import json, os, signal, sys
from pathlib import Path
page, told_s = Path(sys.argv[2]), float(sys.argv[4])
def write(state, rows=({"what": "one"},)):
    page.write_text(json.dumps({"part": page.stem, "state": state, "rows": list(rows), "notes": []}))
"""
OUTCOMES = {  # what a part does, and what is told of it: state, and rows
    "write('ran')": ("ran", 1),
    "write('not here', [])": ("not here", 0),
    "write('failed'); sys.exit(1)": ("failed", 1),
    "write('ran'); sys.exit(3)": ("failed", 1),
    "write('began')": ("cut short", 1),
    "write('began'); os.kill(os.getpid(), signal.SIGKILL)": ("cut short", 1),
    "write('nonsense', [1, 'two', {}, {'what': 'one'}, {'what': 'two', '<b>': 1}])": ("cut short", 1),
    "write('ran', [{'what': 'one', 'x': float('inf'), 'y': float('nan')}])": ("ran", 1),
    "write('ran', [{'what': 'one', 'x': [[[1] * 9] * 9] * 60}] * 11)": ("ran", 11),
    'page.write_text(\'{"part": "a", "state": "ran", "rows": [{"wh\')': ("failed", 0),
    "page.write_text('[' * 100_000)": ("failed", 0),
    "page.write_text('7')": ("failed", 0),
    "page.write_text('9' * 5000)": ("failed", 0),
    "page.write_bytes(bytes(2_000_000))": ("failed", 0),
    "page.mkdir()": ("failed", 0),
    "pass": ("failed", 0),
    "raise ValueError('on purpose')": ("failed", 0),
}
WAITS = "\nwhile True: signal.pause()\n"
LEAVES_CHILDREN = """
def be_stubborn():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    Path(page.parent, f"born{os.getpid()}").touch()
    while True: signal.pause()
if os.fork() == 0:
    if os.fork() == 0:
        be_stubborn()
    os._exit(0)
while not list(page.parent.glob("born*")):
    os.sched_yield()
print("child", [int(path.name[4:]) for path in page.parent.glob("born*")], flush=True)
write('ran')
"""


def command(folder: Path, parts: dict[str, str], needs: tuple[str, ...] = ()) -> list[str]:
    """A run of planted parts, name -> program."""
    for name, program in parts.items():
        (folder / f"{name}.py").write_text(BEGINS + program)
    rows = [(name, 1, "planted", needs) for name in parts]
    program = RUNNER.format(benchmarks=str(ROOT / "benchmarks"), folder=str(folder), parts=rows)
    return [sys.executable, "-c", program, "--out", str(folder / "out")]


def run(folder: Path, parts: dict[str, str], *arguments: str, needs: tuple[str, ...] = ()):
    """Exit code of a run, what it said, and its results."""
    path = folder / "out" / "results.json"
    done = subprocess.run(
        [*command(folder, parts, needs), *arguments],
        capture_output=True, text=True, timeout=200, env={**os.environ, "TMPDIR": str(folder)},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr, json.loads(path.read_text()) if path.exists() else None


def log_of(folder: Path) -> str:
    return (folder / "out" / "log.txt").read_text()


def test_each_part_is_told_of_whatever_the_others_do(tmp_path):
    """All outcomes in one run, in an order of chance: its seed is what one repeats it with."""
    seed = random.randrange(1000)
    folder, programs = tmp_path, random.Random(seed).sample(sorted(OUTCOMES), len(OUTCOMES))
    code, said, page = run(folder, {f"part{at}": one for at, one in enumerate(programs)}, "--minutes", "60")
    said = f"seed {seed}: {said}"
    assert page is not None, said
    found = [(part["state"], len(part["rows"])) for part in page["parts"].values()]
    assert found == [OUTCOMES[program] for program in programs], said
    assert code == 1, said
    assert (folder / "out" / "results.json").stat().st_size < 2_000_000 * len(programs)
    assert not list(folder.glob("tmp*"))  # what parts write goes with the run


def test_a_part_that_hangs_keeps_its_rows_and_the_next_goes_on(tmp_path):
    code, said, page = run(
        tmp_path, {"hangs": "write('began')" + WAITS, "next": "write('ran')"}, "--minutes", "0.1"
    )
    # Both are allowed to be killed on a machine that is slow enough; what was said of the first must hold.
    hangs = page["parts"]["hangs"]
    assert hangs["state"] == "cut short"
    assert any("killed after" in note for note in hangs["notes"])
    assert "next" in page["parts"]
    assert code == 1
    assert "hangs: cut short" in said


def test_children_that_left_the_group_and_ignore_signals_are_killed(tmp_path):
    code, said, _ = run(tmp_path, {"leaves": LEAVES_CHILDREN, "next": "write('ran')"}, "--minutes", "60")
    (line,) = [one for one in log_of(tmp_path).splitlines() if one.startswith("child")]
    assert not psutil.pid_exists(int(line.split("[")[1].rstrip("]")))
    assert code == 0, said


def test_a_log_without_end_keeps_its_first_and_last_half(tmp_path):
    talks = (
        "print('first', *('x' * 1_000_000 for _ in range(100)), 'last', sep='\\n', flush=True); write('ran')"
    )
    code, said, _ = run(tmp_path, {"talks": talks, "next": "print('short'); write('ran')"}, "--minutes", "60")
    log = log_of(tmp_path)
    assert code == 0, said
    assert len(log) < 1_100_000
    assert log.index("first") < log.index("bytes left out") < log.index("last") < log.index("short")


def test_what_is_missing_is_told_and_only_parts_that_need_it_are_not_here(tmp_path):
    code, said, page = run(tmp_path, {"one": "write('ran')"}, needs=("no_such_module",))
    assert page["parts"]["one"]["state"] == "not here"
    assert page["parts"]["one"]["notes"] == ["missing: no_such_module"]
    assert "this machine lacks no_such_module" in said
    assert code == 0


def wheel(folder: Path, name: str, text: str) -> bytes:
    """Write a wheel with one module as PEP 427 has it; its bytes."""
    about = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n", "RECORD": ""}
    about["WHEEL"] = "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", text)
        for file, content in about.items():
            archive.writestr(f"{name}-1.dist-info/{file}", content)
    return path.read_bytes()


def test_wheels_serve_parts_unless_they_are_damaged_or_installed(tmp_path):
    pytest.importorskip("pip", reason="this Python has no pip")
    wheel(tmp_path / "in", "planted_one", "x = 1")
    wheel(tmp_path / "in", "psutil", "raise ImportError('that of the wheel')")
    half = wheel(tmp_path / "in", "planted_two", "x = 1" * 1000)[:-60]
    (tmp_path / "in" / "planted_two-1-py3-none-any.whl").write_bytes(half)
    program = "import planted_one, psutil; write('ran')"
    more = ["--wheels", str(tmp_path / "in"), "--minutes", "60"]
    code, said, page = run(tmp_path, {"one": program}, *more, needs=("planted_one", "psutil"))
    assert code == 0, said
    (note,) = page["notes"]
    assert note.startswith("planted_two-1-py3-none-any.whl: ERROR"), said


def test_a_run_that_is_ended_ends_its_part_and_keeps_results(tmp_path, popen, until):
    waits = "(page.parent.parent / 'born').write_text(str(os.getpid()))\nwrite('began')" + WAITS
    program = popen(
        [*command(tmp_path, {"first": "write('ran')", "waits": waits}), "--minutes", "60"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    born = tmp_path / "born"
    until(lambda: (born.exists() and born.read_text()) or program.poll() is not None, "the part runs")
    program.send_signal(signal.SIGTERM)
    assert program.wait(100) == 130
    assert not psutil.pid_exists(int(born.read_text()))
    parts = json.loads((tmp_path / "out" / "results.json").read_text())["parts"]
    assert {name: (part["state"], len(part["rows"])) for name, part in parts.items()} == {
        "first": ("ran", 1), "waits": ("cut short", 1),
    }  # fmt: skip
    assert not list(tmp_path.glob("tmp*"))


def test_what_an_earlier_run_measured_is_kept(tmp_path):
    for at, text in enumerate(("first", "second", "third")):
        program = f"page.with_suffix('.html').write_text({text!r}); write('ran', [{{'what': {text!r}}}])"
        code, said, page = run(tmp_path, {f"part{at}": program}, "--minutes", "60")
        assert (code, page["parts"][f"part{at}"]["rows"]) == (0, [{"what": text}]), said
    out = tmp_path / "out"
    for at, text in enumerate(("first", "second")):
        earlier = out / f"earlier-{at + 1}"
        rows = json.loads((earlier / "results.json").read_text())["parts"][f"part{at}"]["rows"]
        assert rows == [{"what": text}]
        assert (earlier / f"part{at}.html").read_text() == text
    assert [path.name for path in out.glob("*.html")] == ["part2.html"]
    assert "earlier-2" in said


def test_what_cannot_be_written_later_ends_no_part(tmp_path):
    spoils = "out = page.parent.parent / 'out'; (out / 'results.json.draft').mkdir(); "
    spoils += "(out / 'log.txt').rename(out / 'log'); (out / 'log.txt').mkdir(); write('ran')"
    mends = (
        "print('x' * 1_000_000); (page.parent.parent / 'out' / 'results.json.draft').rmdir(); write('ran')"
    )
    code, said, page = run(tmp_path, {"spoils": spoils, "mends": mends}, "--minutes", "60")
    assert code == 0, said
    assert "could not be written" in said
    assert [part["state"] for part in page["parts"].values()] == ["ran", "ran"]


def test_names_and_times_that_mean_nothing_are_refused(tmp_path):
    code, said, page = run(tmp_path, {"one": "write('ran')"}, "--only", "two")
    assert (code, page) == (1, None)
    assert "there are one" in said
    code, said, page = run(tmp_path, {"one": "write('ran')"}, "--only", " one", "--skip", "one ,")
    assert (code, page) == (1, None)
    assert "no part is left" in said
    for text in ("0", "-1", "nan", "inf"):
        code, said, page = run(tmp_path, {"one": "write('ran')"}, "--minutes", text)
        assert (code, page) == (2, None)
        assert "is not a time" in said
