"""Every command line of evenload in the docs, run or not, has commands and options that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

from click import Command, Context, Group

from evenload.cli import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("README.md")])
SHELL = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
IN_SHELL = re.compile(r"(?:^|[|;&(]|\$ )\s*(evenload [^|;&)#<>\n]*)", re.MULTILINE)
IN_TEXT = re.compile(r"`(evenload [-\w][^`]*)`")


def command_lines(text: str) -> Iterator[str]:
    for block in SHELL.findall(text):
        yield from IN_SHELL.findall(block.replace("\\\n", " "))
    yield from (" ".join(line.split()) for line in IN_TEXT.findall(SHELL.sub("", text)))


def fault(line: str) -> str | None:
    """What is wrong with a command line: a command that is not there, or an option that it does not have."""
    command: Command = cli
    at = Context(command, info_name="evenload")
    known = {name for one in command.get_params(at) for name in (*one.opts, *one.secondary_opts)}
    for word in line.split()[1:]:
        if word.startswith(("...", "\u2026")) or word == "--":
            return None
        if re.match(r"-{1,2}[a-z]", word):
            option = word.split("=", 1)[0].rstrip(",")
            if option not in known:
                return f"{command.name} has no option {option}"
        elif isinstance(command, Group):
            found = command.get_command(at, word)
            if found is None and command.invoke_without_command:
                continue
            if found is None:
                return f"{command.name} has no command {word}"
            command, at = found, Context(found, info_name=word, parent=at)
            known |= {name for one in command.get_params(at) for name in (*one.opts, *one.secondary_opts)}
    return None


def test_command_lines_are_right() -> None:
    for page in PAGES:
        lines = list(command_lines(page.read_text(encoding="utf-8")))
        wrong = {line: why for line in lines if (why := fault(line))}
        assert not wrong, page


def test_wrong_ones_are_found() -> None:
    text = "Say `evenload mapp f.py:f`, or:\n```sh\n$ cat x | evenload map f.py:f --folder \\\n  here\n```\n"
    assert [fault(line) for line in command_lines(text)] == [
        "map has no option --folder",
        "cli has no command mapp",
    ]
    assert fault("evenload merkle log sign releases --key signing.key") is None
    assert fault("evenload merkle log sign releases --everywhere") == "sign has no option --everywhere"
