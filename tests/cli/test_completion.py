import os
import shutil
import subprocess
import sys

import pytest

from evenload.cli import COMMANDS, main


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell, capsys):
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("no bash here to ask for its version")
    with pytest.raises(SystemExit) as ended:
        main(["completion", shell])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert "_EVENLOAD_COMPLETE" in out
    assert f"{shell}_complete" in out


def test_other_shells_are_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "bash" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "words", "proposed"),
    [
        ("evenload d", 1, ["dash", "devices", "doctor"]),
        ("evenload ", 1, sorted(COMMANDS)),
        ("evenload devices --w", 2, ["--watch"]),
    ],
)
def test_what_the_script_asks_is_answered(typed, words, proposed):
    environ = {
        **os.environ,
        "_EVENLOAD_COMPLETE": "bash_complete",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(words),
    }
    ask = "from evenload.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", ask], env=environ, capture_output=True, text=True, timeout=550
    )
    assert done.stderr == ""
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == proposed
