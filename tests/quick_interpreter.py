"""Triton's interpreter without a third of its work, also in a program that is forked from one with Triton.

It replaces the functions of the language before a kernel runs, and again at each call of a function in it.
"""

import sys
from typing import Any

for name in [*sys.modules]:  # kernels are made for the interpreter, or not, as their modules are read
    if name.startswith(("triton", "evenload.moe")) and not name.startswith("triton._C"):
        del sys.modules[name]

from triton.runtime import interpreter  # noqa: E402


def replace_once() -> None:
    """From now on the language is replaced once for each module whose functions a kernel calls."""
    replace, run = interpreter._patch_lang, interpreter.GridExecutor.__call__
    done: set[str] = set()

    def replace_anew(function: Any) -> Any:
        if function.__module__ in done:
            return interpreter._LangPatchScope()
        done.add(function.__module__)
        return replace(function)

    def run_kernel(kernel: Any, *arguments: Any, **named: Any) -> None:
        done.clear()
        run(kernel, *arguments, **named)

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = replace_anew, run_kernel
