"""Which optional packages are installed, by the extras that evenload's metadata lists."""

import re
from dataclasses import dataclass
from importlib import metadata

__all__ = ["Extra", "Package", "installed_extras"]

_REQUIREMENT = re.compile(
    r"([A-Za-z0-9._-]+)[^;>=]*(?:>=\s*([0-9.]+))?[^;]*;.*extra\s*==\s*['\"]([^'\"]+)['\"]"
)


@dataclass(frozen=True, slots=True)
class Package:
    """An optional package: its version, None if not installed, and the oldest that will do, "" for any."""

    name: str
    version: str | None
    least: str = ""

    @property
    def is_usable(self) -> bool:
        return self.version is not None and _numbers(self.version) >= _numbers(self.least)

    def __str__(self) -> str:
        if self.version is None:
            return f"{self.name} (not installed)"
        return f"{self.name} {self.version}" + ("" if self.is_usable else f" (needs {self.least})")


@dataclass(frozen=True, slots=True)
class Extra:
    """A group of optional packages that are installed together."""

    name: str
    packages: tuple[Package, ...]

    @property
    def is_usable(self) -> bool:
        return all(package.is_usable for package in self.packages)

    @property
    def install(self) -> str:
        return f"pip install 'evenload[{self.name}]'"


def installed_extras() -> list[Extra]:
    """Every extra but "all", with its packages; none if evenload itself is not installed."""
    try:
        requirements = metadata.requires("evenload") or []
    except metadata.PackageNotFoundError:
        return []
    packages: dict[str, list[Package]] = {}
    for requirement in requirements:
        match = _REQUIREMENT.match(requirement)
        if match is not None and match[1] != "evenload" and match[3] != "all":
            packages.setdefault(match[3], []).append(Package(match[1], _version(match[1]), match[2] or ""))
    return [Extra(name, tuple(needed)) for name, needed in packages.items()]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: 2.13.0+cpu is 2, 13, 0."""
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"[^0-9.]", version)[0]))
