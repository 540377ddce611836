"""The number of threads of libraries that were loaded before the environment was set.

Variables such as OMP_NUM_THREADS are read once, when a library is loaded.
"""

import os
import sys

__all__ = ["ONE_THREAD", "set_threads"]

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


def _number(variable: str) -> int | None:
    text = os.environ.get(variable, "").partition(",")[0]
    return int(text) if text.isdigit() and int(text) > 0 else None


def _libraries() -> list[str]:
    """Return the paths of the libraries that this process has loaded."""
    with open("/proc/self/maps") as file:
        return sorted({line.split(maxsplit=5)[5].rstrip("\n") for line in file if ".so" in line})
