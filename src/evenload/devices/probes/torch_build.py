"""What the installed torch was built for, read from its files: importing it takes a second or more."""

import ast
import importlib.util
from dataclasses import dataclass
from pathlib import Path

__all__ = ["TorchBuild", "torch_build"]


@dataclass(frozen=True, slots=True)
class TorchBuild:
    """``cuda`` and ``hip`` are versions, None where built without; ``version`` is None without torch."""

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
    """Names that a module gives a text at its top level, the last one counting."""
    constants = {}
    for statement in ast.parse(source).body:
        target = (
            statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        )
        value = getattr(statement, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            constants[target.id] = value.value
    return constants
