"""Keep every accelerator equally busy, and say how close to the best possible that came.

This page is the whole public surface: names and where they live. Each is imported on first use,
so that ``import evenload`` stays cheap.
"""

import sys
from typing import TYPE_CHECKING

# A part may lie in another folder (``pip install --user``); pkgutil.extend_path takes 8 ms to import.
__path__ = list(dict.fromkeys([*__path__, *(f"{folder}/{__name__}" for folder in sys.path if folder)]))

try:
    from evenload._lazy import lazy_names
    from evenload._version import __version__
except ModuleNotFoundError as error:
    raise ImportError(
        "evenload-base is not installed, or an older evenload took its files away when it was removed"
        " (pip install --force-reinstall --no-deps evenload-base)"
    ) from error

if TYPE_CHECKING:
    from evenload._waiting import waiting
    from evenload.devices import Device, DevicePool, current_device
    from evenload.errors import EvenloadError
    from evenload.executor import Executor, ParallelResult, Task, gang, map, run_partitioned
    from evenload.executor.finished_runs import last_run
    from evenload.integrations.generation import LLM
    from evenload.pipeline import MultiDeviceImageEdit, Pipeline

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "_version": "__version__",
        "_waiting": "waiting",
        "devices": "Device DevicePool current_device",
        "errors": "EvenloadError",
        "executor": "Executor ParallelResult Task gang map run_partitioned",
        "executor.finished_runs": "last_run",
        "integrations.generation": "LLM",
        "pipeline": "MultiDeviceImageEdit Pipeline",
    },
    modules="balance clients datasets devices errors events executor frames futures joblib merkle pipeline"
    " report settings training",
)


def load_ipython_extension(shell: object) -> None:
    """Take over the pools of a notebook's cells: ``%load_ext evenload``."""
    from evenload.integrations.script.ipython import load

    load(shell)
