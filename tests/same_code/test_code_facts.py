"""The same code gives the same results: edits that change these are seen, and none of what is not reached.

The oracle is the program itself, run before and after the edit.
"""

import dataclasses
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from same_code.programs import LEAF, RELATIVE, WAYS, Program, running, write_module

from evenload.same_code import CodeFacts, ItemFingerprints, package_versions

XS = (3, 5)


def seen(folder: Path, main: str) -> tuple[str, str]:
    """The results of a program, and the digest of its code, which was asked for before it ran."""
    with running(folder, main) as f:
        digest = CodeFacts(f).digest
        return repr([f(x) for x in XS]), digest


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 6))
def test_an_edit_that_changes_results_is_seen_and_one_that_is_not_reached_is_not(seed: int, n: int) -> None:
    rng = random.Random(seed)
    program = Program(rng, n, "el_")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program.write(folder)
        results, digest = seen(folder, program.main)
        assert seen(folder, program.main) == (results, digest)
        for edited in program.names:
            program.owns[edited] += 1
            program.write(folder)
            after, other = seen(folder, program.main)
            if after != results:
                assert other != digest, (program.main, program.ways, edited)
            if edited not in program.reached:
                assert (after, other) == (results, digest), (program.main, program.ways, edited)
            results, digest = after, other


@pytest.mark.parametrize("way", [*WAYS, *RELATIVE])
def test_each_way_to_reach_a_module_is_followed(tmp_path: Path, way: str) -> None:
    """From the main part, and from a module that the main part reaches."""
    text = {**WAYS, **RELATIVE}[way]
    digests: list[list[str]] = [[], []]
    as_items: list[list[bytes]] = [[], []]
    results: list[list[str]] = [[], []]
    for own in (1, 22):
        (tmp_path / "el_pack").mkdir(exist_ok=True)
        (tmp_path / "el_pack/__init__.py").touch()
        write_module(tmp_path, "el_pack.own", LEAF, own)
        middle = text.replace("MOD", "el_pack.own").replace("LAST", "own")
        write_module(tmp_path, "el_pack.middle", middle, 1)
        through = "from el_pack import middle\ndef f(x): return middle.f(x)"
        for at, main in enumerate([through if way in RELATIVE else middle, through]):
            with running(tmp_path, main) as f:
                digests[at].append(CodeFacts(f).digest)
                as_items[at].append(ItemFingerprints()([f, 1]))
                results[at].append(repr([f(x) for x in XS]))
    assert [len(set(of)) for of in results] == [2, 2], "the edit changes what each of them gives"
    assert [len(set(of)) for of in digests] == [2, 2]
    assert [len(set(of)) for of in as_items] == [2, 2], "an item that brings such a function"


EDITS = [
    ("def f(x, y=1): return x + y", "y=1", "y=2", "the default of `y` in f"),
    ("def f(x, *, y=1): return x + y", "y=1", "y=2", "the default of `y` in f"),
    ("L = [1, {'a': 2}]\ndef f(x): return L", "2", "3", "the global `L`"),
    ("def mk(n):\n    return lambda x: n * x\nf = mk(3)", "3", "4", "`n`, which mk.<lambda> closes over"),
    ("def f(x): return x + 1", "1", "2", "the code of f"),
    ("D = {'a': 3, 'b': 3}\ndef f(x): return list(D)", "'a': 3, 'b': 3", "'b': 3, 'a': 3", "the global `D`"),
    ("import functools\nf = functools.partial(max, 1)", "1", "2", "the argument `1`"),
    ("import functools\nf = functools.partial(dict, seed=1)", "seed=1", "seed=2", "the argument `seed`"),
    ("class f:\n    scale = 2\n    def __call__(self, x): return x", "2", "3", "`f.scale`"),
    ("import re\nP = re.compile('a')\ndef f(x): return P", "'a'", "'b'", "the global `P`"),
]


@pytest.mark.parametrize(("main", "old", "new", "words"), EDITS)
def test_what_differs_in_the_main_part_is_told_in_words(tmp_path, main, old, new, words) -> None:
    with running(tmp_path, main) as f:
        was = CodeFacts(f).facts
    with running(tmp_path, main.replace(old, new)) as f:
        assert CodeFacts(f).change_since(was).replace("mk.<locals>", "mk") == words


OWN = '''"""A module."""
import math

# A comment.
LIMIT = 3
TEXT = """
# a title

text"""
class K:
    def h(self, x):
        return x  # nothing

    def other(self): pass
'''


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("# A comment.", "# Another comment, of\n\n   # two lines.", ""),
        ("return x  # nothing", "return x", ""),
        ("LIMIT = 3", "LIMIT = 4", "own.py line 5"),
        ("# a title", "# another title", "own.py line 7"),
        ("title\n\ntext", "title\n\n\ntext", "own.py line 9"),
        ("return x ", "return -x ", "own.K.h, own.py line 12"),
        ("\r\n", "\n", ""),
    ],
)
def test_the_line_that_differs_is_told(tmp_path: Path, old: str, new: str, words: str) -> None:
    main = "import own\ndef f(x): return own.K().h(x)"
    text = OWN.replace("\n", "\r\n") if old == "\r\n" else OWN
    (tmp_path / "own.py").write_bytes(text.encode())
    with running(tmp_path, main) as f:
        was = CodeFacts(f).facts
    (tmp_path / "own.py").write_bytes(text.replace(old, new).encode())
    with running(tmp_path, main) as f:
        assert CodeFacts(f).change_since(was) == words


def test_a_class_that_a_library_makes_counts_by_what_is_in_it() -> None:
    """Its module is the library's, where it is not found."""

    def made(default: int) -> Any:
        made_here = dataclasses.make_dataclass("Made", [("x", int, default)])
        made_here.__module__ = "types"  # as before Python 3.12
        return lambda item: made_here().x + item

    assert CodeFacts(made(1)).digest == CodeFacts(made(1)).digest != CodeFacts(made(2)).digest


def test_a_folder_may_be_moved(tmp_path: Path) -> None:
    found = []
    for place in ("here", "there/deeper"):
        folder = tmp_path / place
        (folder / "pack").mkdir(parents=True)
        (folder / "pack/__init__.py").write_text("from .inner import h\nHERE = __file__\n")
        (folder / "pack/inner.py").write_text("def h(x): return x\n")
        found.append(seen(folder, "import pack\ndef f(x): return pack.h(x)"))
    assert found[0] == found[1]


def test_versions_of_packages_are_told(tmp_path: Path) -> None:
    with running(tmp_path, "import numpy as np\ndef f(x): return int(np.abs(x))") as f:
        facts = CodeFacts(f)
    assert facts.facts["version numpy"]
    assert "version click" not in facts.facts
    was = {**facts.facts, "version numpy": "0.1"}
    assert facts.change_since(was) == f"numpy 0.1 -> {facts.facts['version numpy']}"


def test_a_package_of_another_name_is_found_by_its_files(tmp_path: Path, monkeypatch: Any) -> None:
    (home := tmp_path / "Whole-1.5.dist-info").mkdir()
    (home / "METADATA").write_text("Metadata-Version: 2.1\nName: Whole\nVersion: 1.5\n")
    files = ("inner/one.py", "alone.py", "fast.cpython-311-x86_64-linux-gnu.so", "data/x.txt", "../bin/y.py")
    (home / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    monkeypatch.syspath_prepend(tmp_path)
    found = package_versions._distributions.__wrapped__()
    assert {name for name, one in found.items() if one._path == home} == {"inner", "alone", "fast"}
    assert found["fast"].version == "1.5"


def test_usual_globals_of_a_program_are_no_change(tmp_path: Path) -> None:
    """Each run makes them anew; found with a script that was run twice."""
    main = (
        "import logging, threading, weakref, collections, evenload\n"
        "log, lock, local = logging.getLogger('x'), threading.Lock(), threading.local()\n"
        "pool, weak = evenload.Executor('cpu*1', backend='inline'), weakref.WeakValueDictionary()\n"
        "file, many = open(__file__), collections.defaultdict(list)\n"
        "def f(x): return log and lock and local and pool and weak is None and file and many and x\n"
    )
    (tmp_path / "main.py").write_text(main)
    digests = set()
    for _ in range(2):
        with running(tmp_path, f"__file__ = {str(tmp_path / 'main.py')!r}\n{main}") as f:
            digests.add(CodeFacts(f).digest)
            f.__globals__["pool"].close()
            f.__globals__["file"].close()
    assert len(digests) == 1
