import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import click
import pytest

from evenload import cli as cli_module
from evenload._version import __version__
from evenload.cli import COMMANDS
from evenload.errors import EvenloadError, MissingExtra, NoUsableDevice
from evenload.events import EventFile, RunFinished, RunStarted, Span
from evenload.merkle import MerkleTree

ZK = Path(__file__).parents[1] / "data" / "zk" / "multiplier"


def test_help_lists_every_command_and_the_exit_codes_without_loading_any(command):
    code, out, err = command("--help")
    assert (code, err) == (0, "")
    assert all(f"  {name} " in out for name in COMMANDS)
    assert "130 interrupted" in out
    assert len(out.splitlines()) <= 48, "it fits on a screen"
    assert max(map(len, out.splitlines())) <= 85
    assert command()[0] == 2, "without a command"
    listing = (
        "import sys; sys.argv = ['evenload', '--help']\n"
        "from evenload.cli import main, COMMANDS\n"
        "try: main()\n"
        "finally: print([m for m in COMMANDS.values() if 'evenload.cli.' + m.split(':')[0] in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True, timeout=550
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_old_names_of_commands_still_work_and_say_the_new_one(command):
    code, out, err = command("verify", "--help")
    assert (code, err) == (0, "note: `evenload verify` is `evenload zk verify` now\n")
    assert out.startswith("Usage: evenload zk verify ")
    code, _, err = command("prove", "--serve", "nowhere", "--devices", "cpu", "k.zkey")
    assert code == 2
    assert err.startswith(
        "note: `evenload prove` is `evenload zk serve` now\nerror: 'nowhere' is no address\n"
    )


def test_a_package_adds_a_command_by_an_entry_point(command, tmp_path, monkeypatch):
    """The oracle is a package that is found on the path, as after ``pip install``."""
    facts = tmp_path / "mine-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    points = "[evenload.commands]\nmine = mine:mine\nmap = mine:mine\nbroken = mine:absent\n"
    (facts / "entry_points.txt").write_text(points)
    (tmp_path / "mine.py").write_text(
        "import click\n@click.command()\n@click.argument('word')\n"
        "def mine(word): click.echo('mine: ' + word)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert command("mine", "word") == (0, "mine: word\n", "")
    assert "  mine " in command("--help")[1]
    assert "Run the function TARGET" in command("map", "--help")[1]  # ours is not replaced
    assert command("nothing")[0] == 2
    code, out, err = command("broken")
    assert (code, out, "mine:absent" in err) == (2, "", True)
    del sys.modules["mine"]


def test_version(command):
    assert command("--version") == (0, f"evenload, version {__version__}\n", "")


def test_an_unknown_command_proposes_the_nearest(command):
    code, out, err = command("devcies")
    assert (code, out) == (2, "")
    assert err.startswith("error: unknown command 'devcies'\n  hint: did you mean 'devices'?")


def noted(error: Exception, note: str) -> Exception:
    error.add_note(note)
    return error


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (EvenloadError("it broke", hint="mend it"), 1, "error: it broke\n  hint: mend it\n"),
        (NoUsableDevice("none"), 3, "error: none\n"),
        (MissingExtra("no torch", hint="pip install it"), 3, "error: no torch\n  hint: pip install it\n"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (
            noted(OSError(5, "No luck", "there"), "not here either"),
            2,
            "there: No luck\n  not here either\n  hint: check the path, and that you may use it\n",
        ),
        (click.UsageError("wrong"), 2, "Error: wrong\n"),
    ],
)
def test_what_a_command_raises_is_a_line_and_an_exit_code(command, monkeypatch, raised, code, message):
    @click.command()
    def broken():
        raise raised

    monkeypatch.setattr(cli_module.LazyGroup, "get_command", lambda self, ctx, name: broken)
    told = command("devices")
    assert told[:2] == (code, "")
    assert told[2].endswith(message)


@pytest.mark.parametrize("returned", [0, 1, 3])
def test_what_a_command_returns_is_the_exit_code(command, monkeypatch, returned):
    made = click.Command("devices", callback=lambda: returned)
    monkeypatch.setattr(cli_module.LazyGroup, "get_command", lambda self, ctx, name: made)
    assert command("devices")[0] == returned


def test_hints_name_options_as_they_are_typed(command, tmp_path, monkeypatch):
    """Oracle: the hint, typed as it stands, is taken."""
    monkeypatch.chdir(tmp_path)
    Path("task.py").write_text("def same(text):\n    return text\n")
    Path("items").write_text("1\n2\n")
    line = ("map", "task.py:same", "items", "-q", "-o", "rows", "--backend", "inline", "--devices", "cpu*1")
    assert command(*line, "--resume", "--seed", "1")[0] == 0
    code, _, said = command(*line, "--resume", "--seed", "2")
    assert (code, "on_change" in said) == (2, False)
    assert "hint: --on-change keep takes " in said
    assert command(*line, "--resume", "--seed", "2", "--on-change", "keep")[0] == 0
    code, _, said = command(*line, "--once", "--retries", "1")
    assert (code, "repeatable" in said) == (2, False)
    assert "--once" in said


def test_what_is_no_option_of_the_command_stays_as_it_is(command, monkeypatch):
    hint = "use policy='pull:4', batch=8, dry_run=True or quiet=...; job.seed=7, --set job.seed=7, x=1, seed="

    def refuse(**_):
        raise EvenloadError('backend="ray" is refused', hint=hint)

    options = [click.Option([f"--{name}"]) for name in ("policy", "batch", "seed", "backend")]
    flags = [click.Option(["-q", "--quiet"], is_flag=True), click.Option(["--dry-run"], is_flag=True)]
    made = click.Command("devices", params=[*options, *flags], callback=refuse)
    monkeypatch.setattr(cli_module.LazyGroup, "get_command", lambda self, ctx, name: made)
    said = command("devices")[2].splitlines()
    assert said[0] == "error: --backend ray is refused"
    rest = "job.seed=7, --set job.seed=7, x=1, seed="
    assert said[1] == f"  hint: use --policy pull:4, --batch 8, --dry-run or --quiet; {rest}"


def left_alone(*arguments, stdout):
    """The exit code and stderr of a command that writes to ``stdout``, a file descriptor; closes it."""
    command = [sys.executable, "-m", "evenload", *arguments]
    try:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=550)
    finally:
        os.close(stdout)
    return done.returncode, done.stderr


def without_a_reader():
    ours, theirs = os.pipe()
    os.close(ours)
    return theirs


def test_a_reader_that_leaves_early_is_no_error():
    assert left_alone("simulate", "--items", "5", stdout=without_a_reader()) == (0, "")


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """Command lines whose exit code is an answer, by that code."""
    monkeypatch.chdir(tmp_path)
    rows = [bytes([at]) * 32 for at in range(8)]
    tree = MerkleTree(rows)
    Path("proof").write_text(json.dumps(tree.prove(3).to_json()) + "\n")
    with EventFile("events.jsonl") as sink:
        sink(RunStarted(0.0, "r", 0.0, 2, {"a": {}, "b": {}}))
        for at in range(2):
            sink(Span("map", "a", "a", at, 1, at, at + 1.0, cost=1.0))
        sink(Span("map", "b", "b", 2, 1, 0.0, 1.0, cost=1.0))
        sink(RunFinished(2.0, "done"))
    Path("task.py").write_text("def half(text):\n    return 1 / int(text)\n")
    Path("items").write_text("1\n0\n")
    leaf, zk = rows[3].hex(), [str(ZK / name) for name in ("vkey.json", "public.json", "proof.json")]
    Path("other.json").write_text(json.dumps([str(1 + int(json.loads(Path(zk[1]).read_text())[0]))]))
    prove = ("merkle", "verify", "proof", "--leaf", leaf, "--root")
    return {
        0: [
            (*prove, tree.root.hex()),
            ("zk", "verify", *zk),
            ("certify", "events.jsonl", "--require", "0"),
            ("--help",),
            ("completion", "bash"),
        ],
        1: [
            (*prove, "00" * 32),
            (*prove, "00" * 32, "--json"),
            ("zk", "verify", zk[0], "other.json", zk[2]),
            ("certify", "events.jsonl", "--require", "1"),
            ("map", "task.py:half", "items", "--json", "-q", "--devices", "cpu*1", "--backend", "inline"),
        ],
    }


def test_a_reader_that_leaves_early_does_not_turn_a_no_into_a_yes(answers, command, monkeypatch):
    """Oracle: the answer, known beforehand: a proof of another root, a share that was not reached."""
    for code, lines in answers.items():
        for line in lines:
            found, out, _ = command(*line)
            assert (found, bool(out)) == (code, True), line
            with open(without_a_reader(), "w") as gone, monkeypatch.context() as patch:
                patch.setattr(sys, "stdout", gone)
                assert command(*line)[0] == code, line


@pytest.mark.parametrize("line", ["top --json", "devices --watch --json"])
def test_what_goes_on_for_ever_ends_when_its_reader_leaves(line, popen):
    process = popen([sys.executable, "-m", "evenload", *line.split()], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=500) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_output_to_a_full_disk_is_an_error_of_one_line():
    code, err = left_alone("simulate", "--items", "5", stdout=os.open("/dev/full", os.O_WRONLY))
    assert code == 1
    assert err.startswith("error: the output cannot be written: No space left on device\n")
    assert "Traceback" not in err
    assert "Exception ignored" not in err


@pytest.mark.parametrize("both", [False, True])
def test_output_over_a_limit_is_an_error_of_one_line_if_there_is_room_for_one(tmp_path, both):
    """A quota, or as here a limit on the size of files: no disk is full, and nothing more is taken."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))

    command = [sys.executable, "-m", "evenload", "simulate", "--items", "5"]
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with (tmp_path / "out").open("w") as out:
        said = subprocess.STDOUT if both else subprocess.PIPE
        done = subprocess.run(
            command, stdout=out, stderr=said, text=True, env=buffered, timeout=550, preexec_fn=limit
        )
    assert done.returncode == 1
    assert both or done.stderr.splitlines()[0] == "error: the output cannot be written: File too large"
    assert "Traceback" not in (done.stderr or "")


@pytest.mark.parametrize(
    ("arguments", "code", "closed"),
    [*(("devices", 0, one) for one in ("1>&-", "2>&-", "0<&- 1>&- 2>&-")), ("none", 2, "2>&-")],
)
def test_closed_outputs_take_everything(arguments, code, closed):
    """By a shell: a fork of this process, which has read all tests, takes longer than the command."""
    line = f'exec "$0" -m evenload {arguments} {closed}'
    done = subprocess.run(["sh", "-c", line, sys.executable], capture_output=True, text=True, timeout=550)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
