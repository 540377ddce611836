"""One door for files: what a user or a stranger names is opened by ``_private_files`` alone.

There it is a plain file (or a pipe that the shell made), with a limit of bytes and of what it unpacks to. A
module that reads in another way is listed below, with the reason why nobody else chooses what it opens.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from parsed_sources import SOURCE, nodes_of, text_of

READERS = {
    "read_text", "read_bytes", "load", "memmap", "fromfile", "loadtxt", "genfromtxt", "decompress",
    "GzipFile", "BZ2File", "LZMAFile", "ZipFile", "open_file", "compose", "safe_load",
}  # fmt: skip
OF_LIBRARIES = {
    "json",
    "gzip",
    "bz2",
    "lzma",
    "zlib",
    "yaml",
    "np",
    "numpy",
    "tomllib",
    "click",
    "tarfile",
    "zipfile",
}
DOOR = {"open_plain", "open_own", "plain_file", "open_named"}
KERNEL = "the kernel's own files"
PACKAGE = "a file of this package"
OWN_RUN = "a file of the run that this process, or its worker, has written"
OWN_CACHE = "a file of the user's own cache, looked at before or checked by a digest"
ELSEWHERE = {
    "certificate.py": "a checker that stands alone: it takes nothing from the package that it checks",
    "audit/readers/trace_file.py": "has limits of its own, block by block",
    "cli/terminal/item_files.py": "items come as a stream, from pipes and devices, too; lines have a limit",
    "report/page/gallery.py": "what Pillow is given was opened at the door; pixels are limited",
    "clients/readers.py": "what numpy is given was opened at the door",
    "moe/trace.py": "what numpy is given was opened at the door",
    "moe/search/plan_file.py": "what numpy is given was opened at the door",
    "pipeline/artifacts.py": "what Pillow is given was opened at the door",
    "merkle/partition.py": "maps a file that was opened at the door before",
    "merkle/log/leaf_file.py": "its own log, which it writes, and through no link",
    "executor/transport/memory_maps.py": "maps what the program has mapped; the kernel's own files",
    "executor/backends/ray/address.py": "the address that Ray wrote",
    "same_code/source_file.py": "source of a module that Python has imported",
    "same_code/package_versions.py": "what an installer wrote of installed packages",
    "native/code_hash.py": PACKAGE,
    "native/objects.py": PACKAGE,
    "dashboard/app.py": PACKAGE,
    "moe/replay/page.py": PACKAGE,
    "report/html.py": PACKAGE,
    "devices/probes/torch_build.py": "a file of the installed torch",
    **dict.fromkeys(("pipeline/stages/command.py", "pipeline/worker/loaded_stage.py"), OWN_RUN),
    **dict.fromkeys(
        ("pipeline/stages/tiny.py", "pipeline/batch_edit.py", "pipeline/worker/site.py"), OWN_RUN
    ),
    **dict.fromkeys(("events/event_log.py", "cli/bench/measure/merkle.py"), OWN_RUN),
    "pipeline/stages/server_pace.py": OWN_RUN,
    **dict.fromkeys(("pipeline/run/machines/fetched_files.py", "report/source.py"), OWN_RUN),
    "executor/journal/segments.py": OWN_RUN,
    **dict.fromkeys(("native/store.py", "pipeline/store/result_cache.py"), OWN_CACHE),
    "_waiting.py": KERNEL,
    **dict.fromkeys(("devices/probes/child.py", "devices/probes/cpu.py"), KERNEL),
    **dict.fromkeys(("executor/worker/child.py", "executor/worker/threads.py"), KERNEL),
    **dict.fromkeys(("executor/worker/fork_main.py", "executor/worker/program_settings.py"), KERNEL),
    **dict.fromkeys(("_memory_sizes.py", "native/machine.py", "executor/transport/arena.py"), KERNEL),
    **dict.fromkeys(("executor/backends/ray/actor.py",), KERNEL),
    "cli/serving/proof_server.py": "a folder, to sync it",
    "pipeline/worker/import_check.py": "opens no file: what this program wrote to its own process",
    "executor/worker/child.py": "opens no file: memory of the worker",
}
"""A module that opens files past the door, and why it may."""


def reads_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of each call that opens a file for reading, or unpacks what a file holds."""
    for node in nodes_of(path):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        owner = getattr(getattr(called, "value", None), "id", "")
        if name == "open" and _is_for_reading(node, called, owner):
            yield node.lineno, "open"
        elif name in READERS and (
            owner in OF_LIBRARIES
            or name[0].isupper()
            or (name.startswith("read_") and isinstance(called, ast.Attribute))
        ):
            yield node.lineno, name


def _is_for_reading(node: ast.Call, called: ast.expr, owner: str) -> bool:
    if owner == "os":
        return "O_WRONLY" not in ast.unparse(node) and "O_PATH" not in ast.unparse(node)
    first = node.args[0] if node.args else None
    if isinstance(first, ast.Call) and getattr(first.func, "id", "") in DOOR:
        return False
    takes_path = isinstance(called, ast.Name) or owner in {*OF_LIBRARIES, "Image", "image_module"}
    is_asked_more = {str(one.arg) for one in node.keywords} - {"mode", "encoding", "errors", "newline"}
    if not takes_path and (is_asked_more or (first is not None and not _is_text(first))):
        return False  # a method that opens no file: Journal.open(path)
    modes = node.args[int(takes_path) : int(takes_path) + 1]
    modes += [one.value for one in node.keywords if one.arg == "mode"]
    return "".join(str(one.value) for one in modes if isinstance(one, ast.Constant))[:1] in ("", "r")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def found() -> dict[str, list[tuple[int, str]]]:
    reads = {
        path.relative_to(SOURCE).as_posix(): list(reads_of(path)) for path in sorted(SOURCE.rglob("*.py"))
    }
    return {name: calls for name, calls in reads.items() if calls and name != "_private_files.py"}


def test_files_are_opened_at_one_door() -> None:
    calls = found()
    assert {name: calls[name] for name in calls if name not in ELSEWHERE} == {}
    assert set(ELSEWHERE) <= set(calls), "an exception that is no longer needed"
    assert all(ELSEWHERE.values())


def test_the_search_sees_what_it_looks_for(tmp_path: Path) -> None:
    """Oracle: calls that open a file, each by itself, and others that do not."""
    opening = (
        "open(p)", "open(p, 'rb')", "p.open()", "p.open(encoding='utf-8')", "p.open('r')", "p.read_text()",
        "Path(p).read_bytes()", "json.load(f)", "gzip.open(p)", "gzip.GzipFile(p)", "yaml.load(t, L)",
        "np.load(p)", "os.open(p, os.O_RDONLY)",
        "zlib.decompress(b)", "click.open_file(p)", "Image.open(p)", "tarfile.open(p)",
    )  # fmt: skip
    others = (
        "open(p, 'w')",
        "p.open('ab')",
        "open(open_plain(p))",
        "Journal.open(p)",
        "json.loads(t)",
        "f.load(x)",
    )
    for call in (*opening, *others):
        module = tmp_path / f"{abs(hash(call))}.py"
        module.write_text(call + "\n")
        assert bool(list(reads_of(module))) is (call in opening), call
        text_of(module)
