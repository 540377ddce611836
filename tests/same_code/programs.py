"""Random programs of several modules, and ways in which one piece of code reaches another."""

import importlib
import random
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# ruff: noqa: E501  (each way is one line)
# Each defines f(x) by way of h, C or K of the module MOD (LAST: its last name; PARENT: its package, or "").
WAYS = {
    "import": "import MOD\ndef f(x): return MOD.h(x)",
    "from": "from MOD import h\ndef f(x): return h(x)",
    "from as": "from MOD import (h as\n  g,  # a comment\n  C)\ndef f(x): return g(x)",
    "star": "from MOD import *\ndef f(x): return h(x)",
    "in function": "def f(x):\n    import MOD\n    return MOD.h(x)",
    "after a colon": "if True: import MOD as m; y = 1\ndef f(x): return m.h(x)",
    "continued": "from MOD \\\n    import h\ndef f(x): return h(x)",
    "closure": "import MOD as o\ndef mk():\n    m = o\n    def f(x): return m.h(x)\n    return f\nf = mk()",
    "closed over function": "from MOD import h\ndef mk(g):\n    return lambda x: g(x)\nf = mk(h)",
    "default": "import MOD as o\ndef f(x, m=o): return m.h(x)",
    "partial": "import MOD as o, functools\ndef g(m, x): return m.h(x)\nf = functools.partial(g, o)",
    "partial of it": "import functools\nfrom MOD import h2\nf = functools.partial(h2, 0)",
    "attribute of instance": "import MOD as o\nclass A:\n    def __init__(self): self.m = o\n    def __call__(self, x): return self.m.h(x)\nf = A()",
    "state of instance": "import MOD as o\nclass A:\n    def __init__(self): self.c = o.C\n    def __call__(self, x): return x * self.c\nf = A()",
    "slots": "import MOD as o\nclass A:\n    __slots__ = ('c',)\n    def __init__(self): self.c = o.C\n    def __call__(self, x): return x * self.c\nf = A()",
    "class attribute": "import MOD as o\nclass A:\n    m = o\n    def __call__(self, x): return self.m.h(x)\nf = A()",
    "module in a dict": "import MOD as o\nM = {'a': [o]}\ndef f(x): return M['a'][0].h(x)",
    "importlib": "import importlib\ndef f(x): return importlib.import_module('MOD').h(x)",
    "computed name": "import importlib, MOD\nN = 'MOD'.split('.')\ndef f(x): return importlib.import_module('.'.join(N)).h(x)",
    "sys.modules": "import sys, MOD\ndef f(x): return sys.modules['MOD'].h(x)",
    "__import__": "def f(x): return __import__('MOD', fromlist=['h']).h(x)",
    "exec": "def f(x):\n    s = {'x': x}\n    exec('from MOD import h; y = h(x)', s)\n    return s['y']",
    "globals": "from MOD import h as reached\ndef f(x): return globals()['reached'](x)",
    "getattr": "import MOD as o\ndef f(x): return getattr(o, 'h')(x)",
    "class": "import MOD as o\ndef f(x): return o.K().h(x)",
    "subclass": "import MOD as o\nclass S(o.K):\n    def h(self, x): return super().h(x)\ndef f(x): return S().h(x)",
    "metaclass": "import MOD as o\nclass T(type):\n    def h(cls, x): return o.h(x)\nclass S(metaclass=T): pass\ndef f(x): return S.h(x)",
    "bound method": "import MOD as o\nf = o.K().h",
    "static method": "import MOD as o\nf = o.K.s",
    "class method": "import MOD as o\nf = o.K.c",
    "wraps": "import MOD as o, functools\ndef deco(g):\n    @functools.wraps(g)\n    def w(x): return g(x)\n    return w\n@deco\ndef f(x): return o.h(x)",
    "decorator of it": "import MOD as o\n@o.deco\ndef f(x): return x",
    "lru_cache": "import MOD as o, functools\n@functools.lru_cache\ndef f(x): return o.h(x)",
    "singledispatch": "import MOD as o, functools\n@functools.singledispatch\ndef f(x): return 0\n@f.register\ndef _(x: int): return o.h(x)",
    "constant": "import MOD as o\ndef f(x): return x * o.C",
    "copied constant": "import MOD as o\nD = o.C\ndef f(x): return x * D",
    "property": "import MOD as o\nclass P:\n    @property\n    def v(self): return o.C\ndef f(x): return P().v * x",
    "descriptor": "import MOD as o\nclass D:\n    def __init__(self, c): self.c = c\n    def __get__(self, one, kind): return self.c\nclass P:\n    v = D(o.C)\ndef f(x): return P().v * x",
    "generator": "import MOD as o\ndef g(x): yield o.h(x)\ndef f(x): return list(g(x))[0]",
    "comprehension": "import MOD as o\ndef f(x): return {y: o.h(y) for y in [x]}[x]",
    "methodcaller": "import MOD as o, operator\ng = operator.methodcaller('h', 3)\ndef f(x): return x * g(o)",
    "dataclass": "import MOD as o, dataclasses\n@dataclasses.dataclass\nclass D:\n    c: int = o.C\ndef f(x): return D().c * x",
    "factory": "import MOD as o, dataclasses\n@dataclasses.dataclass\nclass D:\n    c: int = dataclasses.field(default_factory=lambda: o.C)\ndef f(x): return D().c * x",
    "enum": "import MOD as o, enum\nclass E(enum.Enum):\n    C = o.C\ndef f(x): return E.C.value * x",
    "namedtuple": "import MOD as o, collections\nT = collections.namedtuple('T', 'c', defaults=(o.C,))\ndef f(x): return T().c * x",
    "attribute of function": "import MOD as o\ndef f(x): return f.c * x\nf.c = o.C",
    "annotation": "import MOD as o\ndef f(x: o.C): return f.__annotations__['x'] * x",
    "standard object": "import MOD as o, fractions\nF = fractions.Fraction(o.C, 2)\ndef f(x): return F * x",
    "namespace": "import MOD as o, types\nN = types.SimpleNamespace(c=o.C)\ndef f(x): return N.c * x",
    "mutual": "import MOD as o\ndef f(x): return g(x, 1)\ndef g(x, n): return f(x) if n > 1 else o.h(x)",
}  # fmt: skip
# Of files only, which know their package.
RELATIVE = {
    "relative from": "from .LAST import h\ndef f(x): return h(x)",
    "relative module": "from . import LAST as m\ndef f(x): return m.h(x)",
    "relative in function": "def f(x):\n    from .LAST import h\n    return h(x)",
    "relative importlib": "import importlib\ndef f(x): return importlib.import_module('.LAST', __package__).h(x)",
}  # fmt: skip
# What each module has beside f: all that a way may use.
REST = """
from MOD_way import f
C = OWN + f(0)
def h(x): return f(x) + C * (x + 1)
def h2(a, x): return h(x) + a
class K:
    def h(self, x): return h(x)
    @staticmethod
    def s(x): return h(x)
    @classmethod
    def c(cls, x): return h(x)
def deco(g): return lambda x: g(x) + h(x)
"""
LEAF = "def f(x): return x"


class Program:
    """Modules of which each reaches some later ones, and a main part that reaches one.

    modules   name -> text; reached: names of those that the main part can come to
    """

    def __init__(self, rng: random.Random, n_modules: int, prefix: str):
        homes = [f"{prefix}", f"{prefix}pack.", f"{prefix}pack.deep."]
        names = [f"{rng.choice(homes)}m{at}" for at in range(n_modules)]
        self.names = names
        self.ways: dict[str, str] = {}
        self.owns = {name: rng.randrange(2, 9) for name in names}
        follows: dict[str, str | None] = {}
        for at, name in enumerate(names):
            later = rng.choice([None, *names[at + 1 :]]) if at + 1 < n_modules else None
            follows[name] = later
            self.ways[name] = LEAF if later is None else self._way(rng, later, name)
        self.first = rng.choice(names)
        self.main = self._way(rng, self.first, "")
        self.reached, todo = set(), self.first
        while todo is not None:
            self.reached.add(todo)
            todo = follows[todo]

    @staticmethod
    def _way(rng: random.Random, later: str, home: str) -> str:
        parent, _, last = later.rpartition(".")
        near = parent and home.rpartition(".")[0] == parent
        ways = {**WAYS, **RELATIVE} if near else WAYS
        # Names that are computed reach everything that is loaded.
        ways = {name: way for name, way in ways.items() if name not in ("computed name", "sys.modules")}
        return rng.choice(sorted(ways.values())).replace("MOD", later).replace("LAST", last)

    def write(self, folder: Path) -> None:
        for name in self.names:
            file = folder.joinpath(*name.split(".")).with_suffix(".py")
            file.parent.mkdir(parents=True, exist_ok=True)
            for package in file.relative_to(folder).parents:
                if package.name:
                    (folder / package / "__init__.py").touch()
            write_module(folder, name, self.ways[name], self.owns[name])


def write_module(folder: Path, name: str, way: str, own: int) -> None:
    """Write a module and, apart from its other names, the way that it goes on."""
    file = folder.joinpath(*name.split(".")).with_suffix(".py")
    file.write_text(REST.replace("MOD", name).replace("OWN", str(own)))
    file.with_name(f"{file.stem}_way.py").write_text(way)


@contextmanager
def running(folder: Path, main: str) -> Iterator[Any]:
    """The f of a main part that is run with the modules of ``folder``; all is as it was afterwards.

    Meanwhile no test is loaded: of a program that reaches all that is loaded, each would be a part.
    """
    modules, path, writes = dict(sys.modules), list(sys.path), sys.dont_write_bytecode
    for name in modules:
        if name.startswith("tests."):
            del sys.modules[name]
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    space = types.ModuleType("__main__")
    sys.modules["__main__"] = space
    try:
        exec(compile(main, str(folder / "main.py"), "exec"), vars(space))
        yield vars(space)["f"]
    finally:
        for name in set(sys.modules) - set(modules):
            file = getattr(sys.modules[name], "__file__", None)
            if file is None or str(file).startswith(str(folder)):
                del sys.modules[name]
        sys.modules.update(modules)
        sys.path[:] = path
        sys.dont_write_bytecode = writes
