"""The platforms of the installed torch, read from its files, as importing it takes a second or more."""

import ast
import importlib.util
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """A build of torch: its version, and those of CUDA and HIP that it has; None for what is not there."""

    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    version_file: Path | None = None


def torch_build() -> TorchBuild:
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return TorchBuild()
    version_file = Path(found.origin).with_name("version.py")
    try:
        constants = _constants(version_file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return TorchBuild(version="unknown")
    return TorchBuild(
        version=constants.get("__version__") or "unknown",
        cuda=constants.get("cuda"),
        hip=constants.get("hip"),
        version_file=version_file,
    )


def _constants(source: str) -> dict[str, str]:
    """Return the names to which a module assigns text at its top level, with the last text."""
    constants = {}
    for statement in ast.parse(source).body:
        target = (
            statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        )
        value = getattr(statement, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            constants[target.id] = value.value
    return constants
