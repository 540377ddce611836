"""Runs a script in this interpreter as ``python`` would, with its pools taken over.

    python [flags] -c BOOT '{"devices": ...}' script.py [args]

Arguments, ``__main__``, the path of imports, tracebacks, exit code and signals are those of
``python [flags] script.py [args]``.
"""

import atexit
import builtins
import importlib.machinery
import json
import os
import runpy
import sys
from types import TracebackType
from typing import Any

import evenload
from evenload.integrations.script import takeover

BOOT = (
    "import sys; sys.path[:1] = sys.path[:1] if sys.flags.safe_path else []; sys.path.append({home!a}); "
    "from evenload.integrations.script.launcher import main; sys.path.remove({home!a}); main()"
)
N_OURS = 3
"""Frames of a traceback that are not the script's: of the boot line, ``main`` and ``_run``."""


def command(python: str, flags: list[str], options: dict[str, Any], words: list[str]) -> list[str]:
    """Return the words that run ``words`` (a script or ``-m module``, and arguments) under ``options``."""
    home = os.path.dirname(os.path.dirname(evenload.__file__))
    return [python, *flags, "-c", BOOT.format(home=home), json.dumps(options), *words]


def main() -> None:
    """Take over, run what the command line names, and say at the end how it went."""
    options, *words = sys.argv[1:]
    asked = json.loads(options)
    at = sys.orig_argv.index("-c")
    sys.orig_argv[at:] = words
    notes = ""
    if asked.get("observe"):
        import tempfile

        fd, notes = tempfile.mkstemp(prefix="evenload-")
        os.close(fd)
    page = None
    if asked.get("page"):
        from evenload.integrations.script.script_page import ScriptPage

        page = ScriptPage(os.path.basename(words[words[0] == "-m"]), *asked["page"])
        atexit.register(page.close)
        os.register_at_fork(after_in_child=page.leave)
    run = takeover.install(asked.get("devices"), asked.get("timeout_s"), notes, page)
    if not asked.get("quiet") or asked.get("out") or notes:
        atexit.register(_tell, run, asked)
    try:
        _run(words)
    except SystemExit as end:
        if page is not None and end.code:
            page.status = "failed"
        raise
    except BaseException as error:
        if page is not None:
            page.status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        # What is imported after an interrupt would have the interpreter forget that it is to end by one.
        with takeover.own_imports():
            from evenload import _private_files, _terminal  # noqa: F401
            from evenload.balance import bound  # noqa: F401
            from evenload.integrations.script import ending, observe  # noqa: F401

        _show_without_us(error)
        raise


def _tell(run: takeover.ScriptRun, asked: dict[str, Any]) -> None:
    if takeover.is_script():
        with takeover.own_imports():
            from evenload.integrations.script.ending import tell

            tell(run, asked)


def _run(words: list[str]) -> None:
    first, *arguments = words
    scope = vars(sys.modules["__main__"])
    scope.clear()
    scope |= {"__name__": "__main__", "__doc__": None, "__package__": None, "__spec__": None}
    scope |= {"__loader__": None, "__annotations__": {}, "__builtins__": builtins}
    if first == "-m":
        sys.argv = ["-m", *arguments[1:]]
        if not sys.flags.safe_path:
            sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(arguments[0])  # pyrefly: ignore
        return
    sys.argv = [first, *arguments]
    if os.path.isdir(first) or first.endswith((".zip", ".pyz")):
        sys.path.insert(0, os.path.abspath(first))
        runpy._run_module_as_main("__main__", False)  # pyrefly: ignore
        return
    if not sys.flags.safe_path:
        sys.path.insert(0, os.path.dirname(os.path.realpath(first)))
    path = os.path.abspath(first)
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    scope |= {"__loader__": loader, "__file__": path, "__cached__": None}
    exec(compile(loader.get_data(path), path, "exec", dont_inherit=True), scope)


def _show_without_us(error: BaseException) -> None:
    """Have the interpreter show the script's own part of the traceback, by whichever hook the script has."""
    shows = sys.excepthook

    def show(kind: type[BaseException], raised: BaseException, trace: TracebackType | None) -> None:
        if raised is error:
            for _ in range(N_OURS):
                trace = trace.tb_next if trace is not None else None
            raised = raised.with_traceback(trace)
        sys.excepthook = shows
        shows(kind, raised, trace)

    sys.excepthook = show
