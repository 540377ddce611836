"""What anybody gave is quoted by ``errors.quoted``: never endless, never obeyed by a terminal."""

import ast
import re
from collections.abc import Iterable, Iterator

from parsed_sources import SOURCE, nodes_of

from evenload.errors import quoted

NAMES_OF_OURS = {
    "_lazy.py": "the name of an attribute that a package lacks",
    "errors.py": "the nearest of our own names",
    "gpu/llvm/program.py": "names in generated code",
}
"""Files whose ``!r`` shows a word that is ours."""

POWERS_OF_TEN = {
    "_plain_text.py": "writes numbers for people",
    "cli/clients.py": "delta is a power of ten",
    "pipeline/artifacts.py": "the range of floats that a stranger gave",
    "pipeline/file_types.py": "the same",
}
"""Files that may show 1e+03."""


def test_no_message_shows_a_number_as_a_power_of_ten() -> None:
    """``number_text`` and ``seconds_text`` write 1,234 and 12.3 min, for which ``:.3g`` gives 1.23e+03."""
    bare = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        for node in nodes_of(path)
        if isinstance(node, ast.FormattedValue) and is_short(node.format_spec)
    }
    assert bare == POWERS_OF_TEN.keys()


def is_short(spec: ast.expr | None) -> bool:
    """A format of few digits, such as ``.3g``."""
    return (
        isinstance(spec, ast.JoinedStr)
        and re.search(
            r"\.\d*g$", "".join(part.value if isinstance(part, ast.Constant) else "" for part in spec.values)
        )
        is not None
    )


def reprs(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Lines of values that an f-string shows as their repr, be it by ``!r`` or by the function."""
    for node in nodes:
        if isinstance(node, ast.FormattedValue):
            name = getattr(node.value.func, "id", "") if isinstance(node.value, ast.Call) else ""
            if node.conversion == ord("r") or name in ("repr", "ascii"):
                yield node.lineno


def test_no_message_shows_the_repr_of_a_value() -> None:
    bare = {
        f"{path.relative_to(SOURCE).as_posix()}:{line}"
        for path in SOURCE.rglob("*.py")
        for line in reprs(nodes_of(path))
    }
    assert {one.partition(":")[0] for one in bare} == NAMES_OF_OURS.keys(), sorted(bare)


def test_what_the_repr_of_a_value_may_do() -> None:
    class Raises:
        def __repr__(self) -> str:
            raise SystemError

    for value in (
        10**5000,
        "x" * 10**6,
        "\x1b]52;c;x\x07",
        [["x" * 1000] * 1000] * 1000,
        Raises(),
        b"\x9b" * 999,
    ):
        shown = quoted(value)
        assert len(shown) <= 200
        assert shown.isprintable()
    assert list(reprs(ast.walk(ast.parse("f'{a!r} {b} {repr(c)}'")))) == [1, 1]
