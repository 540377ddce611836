"""The versions of the packages that results depend on, in this environment or in another one."""

import functools
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib import metadata

# Who uses one of these may use any of them: models are loaded by names in their config files.
MODEL_PACKAGES = frozenset((
    "torch", "torchvision", "diffusers", "transformers", "accelerate", "safetensors", "tokenizers",
    "bitsandbytes", "jax", "tensorflow",
))  # fmt: skip
_PROJECTS = {"PIL": "pillow", "cv2": "opencv-python", "sklearn": "scikit-learn", "yaml": "pyyaml"}
_PROJECTS |= {"skimage": "scikit-image"}

_FILES = re.compile(r"^([^/.,\n]+)(?:/.*|\.[^/,\n]*)?\.(?:py|so|pyd),", re.MULTILINE)
"""Of modules in a list of installed files; the group is the name to import."""


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the installed version of each package by the name it is imported by, and of Python.

    With one that models come from, all of those.
    """
    names = set(packages)
    if names & MODEL_PACKAGES:
        names |= MODEL_PACKAGES
    found = {name: version for name in sorted(names) if (version := _version(name)) is not None}
    return {"python": f"{sys.version_info.major}.{sys.version_info.minor}", **found}


@functools.cache
def _version(name: str) -> str | None:
    from importlib import metadata  # a journal asks, an ordinary map never does

    try:
        return metadata.version(_PROJECTS.get(name, name))
    except metadata.PackageNotFoundError:
        found = None if name in MODEL_PACKAGES else _distributions().get(name)
        return found.version if found else None


@functools.cache
def _distributions() -> dict[str, "metadata.Distribution"]:
    """Return what each importable name is from.

    As ``metadata.packages_distributions`` has it, which reads each word of what is installed: a second.
    """
    from importlib import metadata

    found: dict[str, metadata.Distribution] = {}
    for one in metadata.distributions():
        told = (one.read_text("top_level.txt") or "").split()
        for name in told or set(_FILES.findall(one.read_text("RECORD") or "")):
            found.setdefault(name, one)
    return found


def environment_of(python: str, folder: Path) -> dict[str, str]:
    """Return what is installed beside the interpreter ``python``: its packages' names with versions, sorted.

    Nothing is started. The interpreter's own file counts too.
    """
    program = folder / python
    found = {"interpreter": str(program.resolve())}
    try:
        status = program.resolve().stat()
        found["interpreter"] += f" {status.st_size} {status.st_mtime_ns}"
    except OSError:
        return found
    home = program.absolute().parents[1]
    names = sorted(
        one.name for lib in ("lib", "lib64") for one in home.glob(f"{lib}/python*/*-packages/*-info")
    )
    return {**found, "packages": " ".join(dict.fromkeys(names))}
