"""The number of threads of libraries that were loaded before the environment was set.

Variables such as OMP_NUM_THREADS are read once, when a library is loaded.
"""

import functools
import os
import sys
from collections.abc import Callable

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
ONE_THREAD = dict.fromkeys(VARIABLES, "1")
SETTERS = {  # in a library whose file has this in its name: functions that take the number of threads
    "openblas": (
        "OPENBLAS_NUM_THREADS",
        (
            "scipy_openblas_set_num_threads64_",
            "scipy_openblas_set_num_threads",
            "openblas_set_num_threads64_",
            "openblas_set_num_threads",
        ),
    ),
    "libgomp": ("OMP_NUM_THREADS", ("omp_set_num_threads",)),
    "libiomp": ("OMP_NUM_THREADS", ("omp_set_num_threads",)),
    "libomp": ("OMP_NUM_THREADS", ("omp_set_num_threads",)),
}


def set_threads() -> None:
    """Set the loaded libraries to as many threads as the environment says."""
    torch = sys.modules.get("torch")
    n = _number("OMP_NUM_THREADS")
    if torch is not None and n is not None:
        torch.set_num_threads(n)
    if torch is None and "numpy" not in sys.modules:
        return
    import ctypes

    for path in _libraries():
        for part, (variable, setters) in SETTERS.items():
            n = _number(variable)
            if part in os.path.basename(path) and n is not None:
                library = ctypes.CDLL(path)
                setter = next((s for s in setters if hasattr(library, s)), None)
                if setter is not None:
                    getattr(library, setter)(ctypes.c_int(n))


def thread_counters() -> dict[str, tuple[Callable[[], int], Callable[[int], None]]]:
    """Functions that get and set the default number of threads of each library, by name or path."""
    counters: dict[str, tuple[Callable[[], int], Callable[[int], None]]] = {}
    for name in ("torch", "numba"):
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "set_num_threads"):
            counters[name] = module.get_num_threads, module.set_num_threads
    if "numpy" in sys.modules or "torch" in sys.modules:
        loaded = tuple(name for name in ("numpy", "scipy", "torch", "sklearn") if name in sys.modules)
        counters |= _counters(loaded)
    return counters


def default_count() -> int | None:
    """How many threads the environment gives to a library that is loaded now; None if it does not say."""
    return _number("OMP_NUM_THREADS")


@functools.lru_cache(maxsize=1)
def _counters(loaded: tuple[str, ...]) -> dict[str, tuple[Callable, Callable]]:
    """The counters of the libraries that the ``loaded`` packages brought."""
    import ctypes

    counters = {}
    for path in _libraries():
        for part, (_, setters) in SETTERS.items():
            if part in os.path.basename(path):
                library = ctypes.CDLL(path)
                names = (
                    (name.replace("omp_set_num", "omp_get_max").replace("_set_", "_get_"), name)
                    for name in setters
                )
                pair = next((pair for pair in names if all(hasattr(library, one) for one in pair)), None)
                if pair is not None:
                    counters[path] = getattr(library, pair[0]), getattr(library, pair[1])
    return counters


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "").partition(",")[0]
    return int(text) if text.isdigit() and int(text) > 0 else None


def _libraries() -> list[str]:
    """Return the paths of the libraries that this process has loaded."""
    with open("/proc/self/maps", errors="surrogateescape") as file:
        return sorted({line.split(maxsplit=5)[5].rstrip("\n") for line in file if ".so" in line})
