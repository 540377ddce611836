"""Compiled kernels that release Python's global lock, so that threads of one process run them in parallel.

torch's own kernels release it, and so do products in a compiled step. The loops that the compiler fuses for
a CPU are called through a few lines of C++ that keep it, so threads would take turns in most of a step. The
compiler has those lines as a text, which is replaced while a step is compiled.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._inductor.codecache import CppPythonBindingsCodeCache

# torch 2.13, torch/_inductor/codecache.py: what a kernel's binding does with its parsed arguments.
KEEPS = "kernel({}); Py_RETURN_NONE;"
# The arguments are parsed before the call, with the lock. A kernel may throw, and the handler needs the lock.
LETS_GO = """
[](auto... args) {{
    struct Unlocked {{
        PyThreadState* state = PyEval_SaveThread();
        ~Unlocked() {{ PyEval_RestoreThread(state); }}
    }} unlocked;
    kernel(args...);
}}({});
Py_RETURN_NONE;
"""

_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def unlocked_kernels() -> Iterator[bool]:
    """Let kernels that are compiled inside the block release the lock while they run.

    Yields False, and changes nothing, if this torch's compiler calls kernels in a way that is not known here.
    """
    binding: Any = CppPythonBindingsCodeCache
    with _ONE_AT_A_TIME:
        is_known = getattr(binding, "call_entry_function", None) == KEEPS
        if is_known:
            binding.call_entry_function = LETS_GO
        try:
            yield is_known
        finally:
            if is_known:
                binding.call_entry_function = KEEPS
