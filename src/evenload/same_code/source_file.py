"""What a source file says, whatever its comments: a digest, the modules that it names, marks of its lines.

Read without a parser, a tenth of whose time this takes. Imports are found wherever they stand, in strings,
too: one too many costs nothing but a result that is made anew.
"""

import functools
import re
import zlib
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

# A string, which is kept | a comment with the space before it, or a line without anything, which is not.
_LAYOUT = re.compile(
    r'''("""(?:[^\\]|\\.)*?"""|\'\'\'(?:[^\\]|\\.)*?\'\'\'|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')'''
    r"""|[ \t\f]*#[^\n]*|\n(?:[ \t\f]*(?:\#[^\n]*)?(?=\n))|[ \t\f]+(?=\n)""",
    re.DOTALL,
)
# Quotes inside the braces of an f-string are not told from its own: such a file counts with its comments.
_UNSURE = re.compile(r"""[fFrRtT]["'][^\n]*\{[^\n]*#[^\n]*["']""")
_IMPORT = re.compile(
    r"""\bfrom\b[ \t]*([.\w \t]*?)[ \t]*\bimport\b[ \t]*(\([^)]*\)|[^\n;)'"\\]*)"""
    r"""|\bimport\b[ \t]+([^\n;)'"\\]*)"""
)
_CALLED = re.compile(
    r"\b(?:import_module|__import__|run_module|find_spec|importorskip)\(\s*(?:name\s*=\s*)?"
    r"""['"](\.*[\w.]+)['"]\s*(,?)"""
)
# Who uses one of these may import any module; the first ones only if their name is not written out.
_BY_NAME = re.compile(r"\b(?:import_module|__import__|run_module|find_spec)\b")
_LISTED = re.compile(r"\bimport\b[ \t(]+(?:\w+\s*,\s*)*(?:import_module|run_module|find_spec)\b(?!\s*as\b)")
_ANY = re.compile(
    r"\b(?:run_path|spec_from_file_location|SourceFileLoader|iter_modules|walk_packages|entry_points)\b"
    r"|\bsys\s*\.\s*modules\b"
)

# A definition: the bases of a class, and the name.
_HEAD = re.compile(r"(?:async[ \t]+def|def|class(?=[ \t]+\w+[ \t]*(?:\(([^)]*)\))?[ \t]*:))[ \t]+(\w+)")
# Who uses one of these may reach any name of its module.
_LOOKUP = re.compile(
    r"\b(?:globals|locals|vars|exec|eval|compile|__import__|__subclasses__|__init_subclass__|modules|inspect)\b"
)


class Import(NamedTuple):
    """One name that a source imports: ``name`` of ``module`` ("" for the module itself, "*" for all).

    level  number of leading dots
    """

    module: str
    level: int
    name: str


@dataclass(frozen=True, slots=True)
class SourceFile:
    """The content of a file as far as it counts.

    digest         of its text without comments and empty lines; of its bytes if it is no text
    marks          two hexadecimal digits for each line that counts
    imports        what it imports, at any place
    imports_any    it may import modules by names that it computes
    text           what counts of it
    """

    digest: str
    marks: str = ""
    imports: tuple[Import, ...] = ()
    imports_any: bool = False
    text: str = ""


def read_source(path: Path, names: frozenset[str] = frozenset()) -> tuple[SourceFile, bytes]:
    """Read a file, and its bytes. What is inside an archive counts as the archive. Raises OSError.

    names  of functions and classes: others count only if these, or statements of the module, name them
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    content = path.read_bytes()
    return _source(content, names) if path.suffix in (".py", ".pyw") else SourceFile(
        _digest(content)
    ), content


@functools.lru_cache(4096)  # by content: no time of a file has to be trusted
def _source(content: bytes, names: frozenset[str]) -> SourceFile:
    text = _without_layout(content)
    text = _part(text, names) if names else text
    lines = text.split("\n")
    marks = bytes(zlib.crc32(line.encode("utf-8", "surrogateescape")) & 0xFF for line in lines)
    imports, imports_any = imports_in(text)
    digest = _digest(text.encode("utf-8", "surrogateescape"))
    return SourceFile(digest, marks.hex(), imports, imports_any, text)


def _without_layout(content: bytes) -> str:
    text = content.decode("utf-8-sig", "surrogateescape").replace("\r\n", "\n")
    return text if _UNSURE.search(text) else _LAYOUT.sub(r"\1", f"\n{text}\n").strip("\n")


def imports_in(text: str) -> tuple[tuple[Import, ...], bool]:
    """Find what a text imports, and whether it may import modules by names that it computes."""
    found: dict[Import, None] = {}
    text = text.replace("\\\n", " ")
    for origin, names, plain in _IMPORT.findall(text):
        if plain:
            found |= {Import(one, 0, ""): None for one in _names(plain)}
        else:
            module = "".join(origin.split())
            level = len(module) - len(module.lstrip("."))
            for name in _names(names.strip("() \t\n")):
                found[Import(module[level:], level, name)] = None
    called = _CALLED.findall(text)
    for name, more in called:
        level = len(name) - len(name.lstrip("."))
        found[Import(name[level:], level, "")] = None
        if more and "." not in name:  # __import__("a", fromlist=...)
            found[Import(name, level, "*")] = None
    n_written_out = len(called) + len(_LISTED.findall(text))
    return tuple(found), _ANY.search(text) is not None or len(_BY_NAME.findall(text)) > n_written_out


def _names(listed: str) -> list[str]:
    firsts = (one.split(None, 1)[0] for one in listed.split(",") if one.strip())
    return [name for name in firsts if name == "*" or all(part.isidentifier() for part in name.split("."))]


def _part(text: str, names: frozenset[str]) -> str:
    """Return a text without the functions and classes that nothing names from ``names`` on.

    All else stays: statements, decorated ones, classes whose bases are of elsewhere and may note them.
    """
    if _LOOKUP.search(text):
        return text
    # No line of a string begins a definition.
    pieces = re.split(r"\n(?=[^\s\0)\]}])", _LAYOUT.sub(lambda one: one[0].replace("\n", "\0"), text))
    heads = [_HEAD.match(piece) for piece in pieces]
    may_go: dict[str, list[int]] = {}
    for at, head in enumerate(heads):
        is_decorated = at > 0 and pieces[at - 1].startswith("@")
        is_hidden = head is not None and head[2].startswith("__")  # __getattr__ of the module
        if (
            head is not None
            and not is_decorated
            and not is_hidden
            and (not head[1] or head[1].strip() in may_go)
        ):
            may_go.setdefault(head[2], []).append(at)
    gone = {at for places in may_go.values() for at in places}
    todo = [*names, *(word for at, one in enumerate(pieces) if at not in gone for word in _words(one))]
    while todo:
        for at in may_go.pop(todo.pop(), ()):
            gone.discard(at)
            todo += _words(pieces[at])
    return "\n".join(one for at, one in enumerate(pieces) if at not in gone).replace("\0", "\n")


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def first_other_line(content: bytes, now: SourceFile, marks: str) -> tuple[int, str] | None:
    """Find the first line of a file that is not as it was marked: its number, and what it is part of."""
    was = [marks[at : at + 2] for at in range(0, len(marks), 2)]
    new = [now.marks[at : at + 2] for at in range(0, len(now.marks), 2)]
    if was == new:
        return None
    at = next((n for n, (a, b) in enumerate(zip(was, new, strict=False)) if a != b), min(len(was), len(new)))
    lines = content.decode("utf-8-sig", "surrogateescape").splitlines() or [""]
    number = 0
    for kept in now.text.split("\n")[: at + 1]:
        while number < len(lines) - 1 and not _is_rest(lines[number], kept):
            number += 1
        number += 1
    number = min(max(number, 1), len(lines))
    return number, _definition(lines, number - 1)


def _is_rest(line: str, kept: str) -> bool:
    """Whether ``kept`` may be what counts of a line."""
    return line.startswith(kept) if kept.strip() else not line.strip()


def _definition(lines: list[str], at: int) -> str:
    """Return the dotted name of the function or class around a line; "" for none."""
    names, depth = [], len(lines[at]) - len(lines[at].lstrip()) + 1
    for line in reversed(lines[: at + 1]):
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent < depth:
            depth = indent
            match = re.match(r"\s*(?:async\s+)?(?:def|class)\s+(\w+)", line)
            names += [match[1]] if match else []
    return ".".join(reversed(names))


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()
