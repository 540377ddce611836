"""Scripts as they stand in documentation do under ``evenload exec`` just what they do without it.

The oracle is the interpreter itself, which runs the same file: output, errors and exit code, byte for byte.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))
EXEC = [sys.executable, "-m", "evenload", "exec"]
LIMIT_S = 500
OURS = re.compile(rb"^evenload: .*\n(?:  .*\n)*", re.MULTILINE)
"""Our words at the end."""


def plain(*words, **more):
    return subprocess.run([sys.executable, *words], capture_output=True, timeout=LIMIT_S, **more)


def dealt(*words, options=(), **more):
    words = [*EXEC, *options, sys.executable, *map(str, words)]
    return subprocess.run(words, capture_output=True, timeout=LIMIT_S, **more)


def outcome(ended):
    return ended.returncode, ended.stdout, OURS.sub(b"", ended.stderr)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_does_the_same(tmp_path, script):
    if script.stem.startswith("joblib"):
        pytest.importorskip("joblib", reason="joblib is not installed")
    text, script = script.read_text(), tmp_path / f"{script.stem}.py"
    script.write_text(text)
    ours = dealt(script, "an argument")
    assert outcome(ours) == outcome(plain(script, "an argument"))
    assert b"evenload: " in ours.stderr


PROGRAMS = {
    "names": "import sys; print(__name__, __file__, type(__spec__), __package__, sys.argv, sys.flags)",
    "raises": "def f(x):\n    return 1 / x\n\nf(0)",
    "no syntax": "x = (1,\n",
    "exits": "import sys\nsys.exit('some words')",
    "own hook": "import sys\nsys.excepthook = lambda kind, e, tb: print(kind, e, tb.tb_lineno)\n\n1 / 0",
    "at the end": "import atexit\natexit.register(print, 'over', __name__)\nprint(sorted(globals()))",
    "cause": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError(3) from e",
    "interrupted": "raise KeyboardInterrupt",
    "killed": "import os\nos.kill(os.getpid(), 15)",
}


WAYS = (["own.py", "a", "-b"], ["-m", "own", "c"], ["{folder}/own.py"], ["-u", "-W", "ignore", "own.py"])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_finds_and_leaves_what_it_would(tmp_path, name):
    (tmp_path / "own.py").write_text(PROGRAMS[name])
    for way in WAYS if name == "names" else WAYS[: 1 + (name in ("raises", "at the end"))]:
        words = [word.format(folder=tmp_path) for word in way]
        options = () if name != "killed" else ("-q",)
        ours = dealt(*words, options=options, cwd=tmp_path)
        assert outcome(ours) == outcome(plain(*words, cwd=tmp_path))


def test_a_folder_with_a_main_runs(tmp_path):
    (tmp_path / "__main__.py").write_text("import sys, beside\nprint(__name__, sys.argv, beside.x)\n")
    (tmp_path / "beside.py").write_text("x = 3\n")
    assert outcome(dealt(tmp_path, "a")) == outcome(plain(tmp_path, "a"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_ctrl_c_ends_it_as_it_would(tmp_path, popen, line_of):
    (tmp_path / "own.py").write_text(
        "import multiprocessing, time\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "    result = pool.map_async(abs, [1])\n"
        "    print(result.get(), flush=True)\n"
        "    time.sleep(500)\n"
    )
    codes = []
    for start in ([sys.executable], [*EXEC, sys.executable]):
        program = popen([*start, str(tmp_path / "own.py")], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        line_of(map(bytes.decode, program.stdout), "[1]")
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=LIMIT_S)
        codes.append((program.returncode, said.count(b"KeyboardInterrupt")))
    assert codes[0] == codes[1] == (-signal.SIGINT, 1)


def test_files_beside_a_script_are_its_own(tmp_path):
    """A script may have files with names of the library's, which it itself does not import."""
    (tmp_path / "place").mkdir()
    for name in ("json", "dataclasses", "inspect", "logging", "fractions"):
        (tmp_path / "place" / f"{name}.py").write_text("raise SystemExit('not for you')")
    script = tmp_path / "place" / "own.py"
    script.write_text(
        "import multiprocessing\n"
        "if __name__ == '__main__':\n"
        "    multiprocessing.get_context('fork')\n"
        "    from multiprocessing.pool import Pool\n"
        "    with Pool(2) as pool:\n"
        "        print(pool.map(abs, [-1]), sorted(pool.imap_unordered(abs, [-2])))\n"
    )
    assert outcome(plain(script, cwd=tmp_path)) == (0, b"[1] [2]\n", b"")
    assert outcome(dealt(script, cwd=tmp_path)) == (0, b"[1] [2]\n", b"")
