"""Public scripts with ``evenload exec`` and without: whether they say the same, and what it took.

    python benchmarks/exec_scripts.py CLONES [--only primes] [--kill]

exec_scripts.toml lists them, none of their lines is changed. Each is run in its folder, without evenload
and with it. The outputs are equal if each line that all plain runs have is there as often, and the others
are those of one plain run but for their numbers; in which worker something was done is no difference.
Plain runs are two, and three, with as many more with evenload, where outputs hang on who was first.
CLONES is where the repositories are or are cloned to. With ``--kill`` one worker of each script is killed,
and the row says whether the script ended. Takes some minutes.
"""

import argparse
import functools
import json
import operator
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

LIST = Path(__file__).with_suffix(".toml")
LIMIT_S, MOST_PLAIN = 300.0, 3
NUMBER = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?(e[-+]?\d+)?")
WORKER = re.compile(r"(Worker|Process)-\d+(:\d+)*")
OURS = re.compile(r"^evenload: .*\n(?:  .*\n)*", re.MULTILINE)

Ran = tuple[int | None, str, str, float]
"""The exit code of a run (None: it did not end), what it said on both streams, and seconds."""


def clone(clones: Path, name: str) -> Path:
    """The folder of the repository ``name``, which is cloned if it is not there."""
    folder = clones / name.replace("/", "+")
    if not folder.exists():
        subprocess.run(["git", "clone", "-q", f"https://github.com/{name}", str(folder)], check=True)
    return folder / "repo" if (folder / "repo").exists() else folder


def scripts(clones: Path, only: str, folder: Path) -> Iterator[tuple[str, str, str, Path]]:
    """Each script: its name, its kind, why its output differs if it does, and where it lies."""
    for repository in tomllib.loads(LIST.read_text())["repository"]:
        for script in repository["scripts"]:
            name = f"{repository['name'].split('/')[1]}: {Path(script['path']).name}"
            if not re.search(only, name):
                continue
            place = folder / str(len(list(folder.iterdir())))
            place.mkdir()
            beside = "" if repository.get("alone") else str(Path(script["path"]).parent)
            git = ["git", "-C", str(clone(clones, repository["name"])), "archive", repository["commit"]]
            archive = subprocess.run([*git, beside or script["path"]], check=True, capture_output=True).stdout
            subprocess.run(["tar", "-x", "-C", str(place)], input=archive, check=True)
            yield name, script["kind"], script.get("differs", "why is not known"), place / script["path"]


def ran(words: list[str], script: Path, kills: bool = False) -> Ran:
    """Run ``words`` where ``script`` lies; with ``kills``, kill one of its workers."""
    environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "1"}
    begun_s = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        program = subprocess.Popen(words, cwd=script.parent, stdout=out, stderr=err, env=environment)
        if kills:
            kill_one(program)
        try:
            code = program.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            code = None
            for child in psutil.Process(program.pid).children(recursive=True):
                child.kill()
            program.kill()
            program.wait()
        took_s = time.monotonic() - begun_s
        out.seek(0)
        err.seek(0)
        return code, out.read(), OURS.sub("", err.read()), took_s


def kill_one(program: subprocess.Popen) -> None:
    """Kill the last worker that the program has started, when it has some and has used its processor."""
    while program.poll() is None:
        time.sleep(0.02)
        try:
            workers = psutil.Process(program.pid).children()
            busy = [one for one in workers if sum(one.cpu_times()[:2]) > 0.02]
            if busy and "tracker" not in " ".join(busy[-1].cmdline()):
                busy[-1].kill()
                return
        except psutil.Error:
            continue


def are_equal(ours: str, plain: Sequence[str]) -> bool:
    """Whether ``ours`` is what one of the plain runs is, as far as all of them are alike."""
    lines, *each = (Counter(WORKER.sub(r"\1-N", text).splitlines()) for text in (ours, *plain))
    alike = functools.reduce(operator.and_, each)
    return not alike - lines and masked(lines - alike) in [masked(one - alike) for one in each]


def is_same(ours: Ran, plain: Sequence[Ran]) -> bool:
    """Whether a run has the exit code and the output of the plain ones."""
    return ours[0] == plain[0][0] and all(are_equal(ours[at], [one[at] for one in plain]) for at in (1, 2))


def masked(lines: Counter[str]) -> Counter[str]:
    found: Counter[str] = Counter()
    for line, n in lines.items():
        found[" ".join(NUMBER.sub("N", line).split())] += n
    return found


def row(name: str, kind: str, differs: str, script: Path, kills: bool) -> dict[str, Any]:
    python = [sys.executable, str(script)]
    plain = [ran(python, script) for _ in range(2)]
    told = script.with_suffix(".evenload.json")
    dealt = [sys.executable, "-P", "-m", "evenload", "exec", "-o", str(told), *python]
    while not (same := is_same(ours := ran(dealt, script), plain)) and len(plain) < MOST_PLAIN:
        plain.append(ran(python, script))
    facts = json.loads(told.read_text()) if told.exists() else {}
    if not same and os.environ.get("SHOW_DIFFERENCES"):
        print(*plain[0], *ours, sep="\n=====\n", file=sys.stderr)
    found = {"script": name, "kind": kind, "changed": 0, "equal": "yes" if same else f"no: {differs}"}
    found |= {"calls": facts.get("items", 0), "before_s": min(one[3] for one in plain), "after_s": ours[3]}
    found |= {"bound_s": facts.get("bound_s"), "pools_s": facts.get("wall_s"), "ratio": facts.get("ratio")}
    found |= {"left": "; ".join(facts.get("left", ()))}
    if kills:
        killed = ran(dealt, script, kills=True)
        found["killed"] = "hung" if killed[0] is None else "ended"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("clones", type=Path)
    parser.add_argument("--only", default="", help="scripts whose names this pattern is in")
    parser.add_argument("--kill", action="store_true", help="kill a worker of each, too")
    given = parser.parse_args()
    sys.argv[sys.argv.index(str(given.clones))] = "CLONES"  # whose place is nobody's business
    from record import print_table, record

    found = []
    with tempfile.TemporaryDirectory(prefix="evenload-") as folder:
        for one in scripts(given.clones, given.only, Path(folder)):
            found.append(row(*one, given.kill))
            print_table(found[-1:])
    if given.only:
        print(json.dumps(found))
        return
    shown = ("script", "kind", "changed", "equal", "calls", "killed")
    record(
        "exec_scripts", [{key: one[key] for key in shown if key in one} for one in found], is_of_speed=False
    )


if __name__ == "__main__":
    main()
