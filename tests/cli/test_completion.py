import shutil

import pytest

from evenload.cli import COMMANDS


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell, command):
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("no bash here to ask for its version")
    code, out, _ = command("completion", shell)
    assert code == 0
    assert "_EVENLOAD_COMPLETE" in out
    assert f"{shell}_complete" in out


def test_other_shells_are_refused(command):
    code, _, err = command("completion", "tcsh")
    assert (code, "bash" in err) == (2, True)


@pytest.mark.parametrize(
    ("typed", "words", "proposed"),
    [
        ("evenload d", 1, ["dash", "devices", "doctor"]),
        ("evenload ", 1, sorted(COMMANDS)),
        ("evenload devices --w", 2, ["--watch"]),
    ],
)
def test_what_the_script_asks_is_answered(typed, words, proposed, command, monkeypatch):
    for name, value in (
        ("_EVENLOAD_COMPLETE", "bash_complete"),
        ("COMP_WORDS", typed),
        ("COMP_CWORD", words),
    ):
        monkeypatch.setenv(name, str(value))
    _, out, err = command()
    assert err == ""
    assert [line.partition(",")[2] for line in out.splitlines()] == proposed
