"""What a machine may lack: ``require("torch", extra="torch")`` imports a package or says how to get it."""

import importlib
import importlib.util
import sys
from types import ModuleType

from evenload.errors import MissingExtra, NoUsableDevice, quoted


def is_installed(module: str) -> bool:
    """Whether ``module`` could be imported; imports only its parent packages."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def require(module: str, *, extra: str = "", why: str = "") -> ModuleType:
    """Import and return ``module``.

    Raises MissingExtra if it (or something that it needs) is not installed. The hint is the install
    line of the ``extra`` that brings it, or without one that of the package that ``module`` is named after;
    ``why`` names the feature that asked for it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        needed = f" ({why} needs it)" if why else ""
        missing = error.name or module
        is_absent = missing == module.split(".")[0]
        message = f"{quoted(missing)} is not installed{needed}" if is_absent else f"{quoted(module)}: {error}"
        brings = f"'evenload[{extra}]'" if extra else module.split(".")[0]
        raise MissingExtra(message, hint=f"pip install {brings}") from error


def refuse_windows(what: str, system: str = sys.platform) -> None:
    """Raise NoUsableDevice if ``system`` is Windows, where ``what`` does not run."""
    if system == "win32":
        raise NoUsableDevice(
            f"{what} needs file locks, pipes and signals that Windows does not have",
            hint="run it in WSL 2 (wsl --install); here evenload.balance, `evenload simulate`, "
            "`plan-training` and `certify` are meant to work",
        )
