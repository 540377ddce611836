"""Layered settings: flag > ``EVENLOAD_*`` > ``./evenload.toml`` > user file > default, each with its source.

settings = resolve({"devices": devices_flag, "policy": policy_flag})     None: the flag was not given
settings.devices, settings.source("devices")
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from evenload._private_files import read_plain
from evenload._user_folders import user_folder
from evenload.errors import ConfigError, UnknownName, quoted

__all__ = ["SETTINGS", "Setting", "Settings", "resolve", "unknown_variables", "user_file", "wants_color"]

TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
# EVENLOAD_ variables that are no settings: the executor sets the first three for its workers, and the others
# say which machine code is used (native).
OTHER_VARIABLES = (
    "EVENLOAD_DEVICE", "EVENLOAD_THREADS", "EVENLOAD_ADAPTER", "EVENLOAD_KERNEL_CACHE", "EVENLOAD_KERNELS",
    "EVENLOAD_PROCESSOR", "EVENLOAD_TOKEN",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its default, whose type it has, its choices if they are few, and its help text."""

    name: str
    default: str | bool
    help: str
    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        return f"EVENLOAD_{self.name.upper()}"

    @property
    def flag(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    def read(self, value: Any, source: str) -> str | bool:
        """Convert ``value`` to this setting's type. Raises ConfigError, which names ``source``."""
        if isinstance(self.default, bool):
            return self._read_bool(value, source)
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise ConfigError(
                f"{self.name} = {quoted(value)} in {source} is not text", hint=f'write {self.name} = "…"'
            )
        text = str(value)
        if self.choices and text not in self.choices:
            raise UnknownName(f"{self.name} in {source}", text, self.choices)
        return text

    def _read_bool(self, value: Any, source: str) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in TRUE + FALSE:
            return value.lower() in TRUE
        raise ConfigError(
            f"{self.name} = {quoted(value)} in {source} is neither true nor false", hint="use true or false"
        )


MOST_BYTES = 1 << 20  # of a settings file
SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("devices", "all", "Where work runs: all, gpu, cpu, cpu*4, cuda:0,1 or a number of devices."),
        Setting("backend", "process", "How workers run: process, ray (a cluster), or inline to debug."),
        Setting("shared_memory_limit", "25%", "For arrays that travel: of the memory, or 2 GiB; 0: none."),
        Setting("key_cache_limit", "4 GiB", "For checked proving keys that are kept on disk; 0: none."),
        Setting("start", "auto", "How worker processes start.", ("auto", "forkserver", "spawn")),
        Setting("policy", "measured", "How items are dealt: measured, pull, guided, factoring, static, ..."),
        Setting("warm_start", True, "Remember how fast functions ran, for the next program."),
        Setting("learn_sizes", True, "Learn what items cost from what they are, and deal the longest first."),
        Setting(
            "moe", "off", "What vLLM and SGLang use of evenload.moe.", ("off", "eplb", "search", "weighted")
        ),
        Setting("moe_fetch_tokens", "8000", "Tokens a GPU serves while it fetches an expert; off: no price."),
        Setting("color", "auto", "Colour in the terminal.", ("auto", "always", "never")),
        Setting("progress", True, "Show progress while work runs."),
        Setting("dash", False, "Serve the live page of what runs, and print where."),
    )
}


class Settings(Mapping[str, Any]):
    """The resolved settings, read as attributes or as a mapping; ``source`` says where each came from."""

    def __init__(self, values: Mapping[str, Any], sources: Mapping[str, str]):
        self._values = dict(values)
        self._sources = dict(sources)

    def source(self, name: str) -> str:
        """Return where a value is from: "--devices", "EVENLOAD_DEVICES", the path of a file, or "default"."""
        return self._sources[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_values"][name]
        except KeyError:
            raise AttributeError(f"no setting {quoted(name)}") from None

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def resolve(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    folder: Path | None = None,
    user: Path | None = None,
) -> Settings:
    """Find the value of every setting and where it is from.

    flags    from the command line; None: not given
    folder   where ``evenload.toml`` is looked for, the current one by default
    user     the user's file, ``user_file()`` by default
    Raises UnknownName for a flag or a key in a file that is no setting, ConfigError for a value of the wrong
    type or a file that is no TOML. Files that do not exist are passed over; empty variables count as not set.
    """
    project = (folder or Path()) / "evenload.toml"
    user = user or user_file(environ)
    layers = [
        {
            name: (value, SETTINGS[name].flag)
            for name, value in _known(flags or {}, "flag")
            if value is not None
        },
        {name: (environ[s.variable], s.variable) for name, s in SETTINGS.items() if environ.get(s.variable)},
        {name: (value, str(project)) for name, value in _known(_read(project), f"setting in {project}")},
        {name: (value, str(user)) for name, value in _known(_read(user), f"setting in {user}")},
        {name: (setting.default, "default") for name, setting in SETTINGS.items()},
    ]
    values, sources = {}, {}
    for layer in reversed(layers):
        for name, (value, source) in layer.items():
            values[name], sources[name] = SETTINGS[name].read(value, source), source
    return Settings(values, sources)


def user_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return ``$XDG_CONFIG_HOME/evenload/evenload.toml``, by default under ``~/.config``."""
    return user_folder("XDG_CONFIG_HOME", ".config", environ) / "evenload.toml"


def unknown_variables(environ: Mapping[str, str] = os.environ) -> list[str]:
    """List ``EVENLOAD_*`` variables that have no meaning, most likely typing errors."""
    known = {*OTHER_VARIABLES, *(setting.variable for setting in SETTINGS.values())}
    return sorted(name for name in environ if name.startswith("EVENLOAD_") and name not in known)


def wants_color(choice: str, stream: TextIO, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether ``stream`` gets colour: by the setting, NO_COLOR, FORCE_COLOR, TERM=dumb, being a terminal."""
    if choice != "auto":
        return choice == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR"):
        return True
    return environ.get("TERM") != "dumb" and stream.isatty()


def _known(entries: Mapping[str, Any], what: str) -> list[tuple[str, Any]]:
    for name in entries:
        if name not in SETTINGS:
            raise UnknownName(what, name, SETTINGS)
    return list(entries.items())


def _read(path: Path) -> dict[str, Any]:
    try:
        text = read_plain(path, MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", hint="correct its permissions"
        ) from error
    import tomllib

    try:
        return tomllib.loads(text.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is no valid TOML: {error}", hint='write lines such as devices = "all"'
        ) from error
