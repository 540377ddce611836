"""Ten thousand characters, control characters and odd numbers in every option and file: errors stay short."""

import json
import re
import unicodedata
import zlib
from collections.abc import Iterator

import pytest
from every_command import commands

VALUES = {
    "a long word": "x" * 10_000,
    "long words": "x y " * 2_500,
    "controls": "\x1b[31mred\x07\r\x9b2J\u202e" + "y" * 300,
    "lines": "line\n" * 2_000,
    "a long number": "9" * 6_000,
    "brackets": "[{(" * 1_000,
    "no number": "1e999",
    "nothing": "",
}
MOST_CHARACTERS = 8_500
"""Of all that an error says: the message, its hint, and what click says of the usage."""
MOST_RUN = 200
"""Characters of the input in a row."""
SERVES_FOR_EVER = {("top", "--interval"), ("dash", "--token"), ("dash", "--host"), ("dash", "--port")}
HEAVY = {"bench", "warm"}


def options() -> Iterator[tuple[tuple[str, ...], str, str]]:
    """The path of each command, and the name and kind of what it takes."""
    for path, command in commands():
        for one in command.params:
            is_light = path[0] not in HEAVY and "bench" not in path
            if (
                is_light
                and not getattr(one, "is_flag", False)
                and (path[0], one.opts[0]) not in SERVES_FOR_EVER
            ):
                yield path, one.opts[0], one.param_type_name


EVERY = sorted(set(options()))
COMMANDS = sorted({path for path, _, _ in EVERY})


def some(*of: object, n: int) -> list[str]:
    """``n`` of the values, others for other arguments; the same each time."""
    first = zlib.crc32(repr(of).encode())
    return [list(VALUES.values())[(first + 3 * number) % len(VALUES)] for number in range(n)]


def check(text: str) -> None:
    shown = text[:600]
    assert len(text) <= MOST_CHARACTERS, (len(text), shown)
    runs = re.findall(r"x+|9+|y+|(?:\[\{\()+", text)
    assert max(map(len, runs), default=0) <= MOST_RUN, shown
    assert {one for one in text if unicodedata.category(one) in ("Cc", "Cs")} <= {"\n", "\t"}, shown
    assert "\u202e" not in text


@pytest.fixture
def refused(command, monkeypatch, tmp_path):
    """Run a command that ends by itself, and check what it says if it fails."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))

    def call(*arguments: str) -> None:
        code, out, err = command(*arguments)
        if code:
            check(out + err)

    return call


def with_value(path: tuple[str, ...], name: str, kind: str, value: str) -> list[str]:
    if kind == "argument":
        return [*path, "--", value]
    return [*path, f"{name}={value}" if name.startswith("--") else f"{name}{value}"]


@pytest.mark.parametrize("n_values", [1, pytest.param(len(VALUES), marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_an_option_is_refused_in_few_words(refused, path, n_values):
    """One value for each option or, which is slow, every one."""
    for at, name, kind in EVERY:
        for value in some(path, name, n=n_values) if at == path else ():
            refused(*with_value(path, name, kind, value))


@pytest.mark.parametrize(
    "arguments",
    [
        "map builtins:str items.txt --devices VALUE",
        "map builtins:str items.txt --policy VALUE",
        "map builtins:str items.txt --backend VALUE",
        "map VALUE items.txt",
        "map json:VALUE items.txt",
        "simulate --devices VALUE",
        "simulate --cost VALUE --items 3",
        "simulate --policy VALUE --items 3",
        "plan job.json --set VALUE",
        "plan job.json --set job.name=VALUE",
        "merkle root items.txt --scheme VALUE",
        "merkle root items.txt --types VALUE",
        "merkle verify items.txt --root VALUE",
        "moe place items.txt --layers VALUE --gpus 2",
        "dash VALUE",
        "VALUE",
    ],
)
def test_what_a_command_works_on_is_refused_in_few_words(refused, arguments, tmp_path):
    (tmp_path / "items.txt").write_text('"one"\n')
    (tmp_path / "job.json").write_text(json.dumps({"job": {"name": "a"}, "stages": []}))
    for value in some(arguments, n=3):
        refused(*(one.replace("VALUE", value) for one in arguments.split(" ")))


@pytest.mark.parametrize(
    "arguments",
    [
        "plan FILE",
        "run FILE",
        "clients run FILE",
        "verify FILE FILE FILE",
        "zk info FILE",
        "prove FILE FILE",
        "merkle verify FILE",
        "moe place FILE --gpus 2",
        "moe replay FILE --gpus 2",
        "simulate --costs FILE",
        "report FILE",
        "dash FILE",
    ],
)
def test_a_file_is_refused_in_few_words(refused, arguments, tmp_path):
    for text in some(arguments, n=2):
        keys = {text: {text: [text]}, "job": text, "stages": [text, {text: 1}]}
        stages = {"job": {"name": text}, "stages": [{"id": text, "use": text}] * 20}
        for content in (text, json.dumps(text), json.dumps(keys), json.dumps(stages)):
            (tmp_path / "file.json").write_text(content, encoding="utf-8", errors="replace")
            refused(*(one.replace("FILE", "file.json") for one in arguments.split(" ")))


@pytest.mark.parametrize("name", ["EVENLOAD_DEVICES", "EVENLOAD_POLICY", "EVENLOAD_BACKEND"])
def test_a_setting_is_refused_in_few_words(refused, monkeypatch, name, tmp_path):
    settings = tmp_path / "evenload.toml"
    for value in some(name, n=2):
        monkeypatch.setenv(name, value)
        refused("simulate", "--items", "3")
        monkeypatch.delenv(name)
        settings.write_text(f"devices = {json.dumps(value)}\n{value} = 3\n", encoding="utf-8")
        refused("simulate", "--items", "3")
        settings.unlink()
