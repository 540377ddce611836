"""Triton's interpreter without a third of its work.

It replaces the functions of the language before a kernel runs, and again at each call of a function in it.
"""

from typing import Any

from triton.runtime import interpreter


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
