"""What is imported before a worker is forked is what its stages would import themselves, as they would."""

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.executor.task.user_file import import_file
from evenload.pipeline.job.spec import StageSpec
from evenload.pipeline.reuse.stage_identity import read_code
from evenload.pipeline.run.machines.fleet import imports_of
from evenload.pipeline.target import locate_target

MODULES = ("stage", "helper", "pack.__init__", "pack.inner", "leaf")  # each imports only those after it
PREPARES = (
    "import os\nos.environ['EL_SET'] = '1'",
    "import os as o\nfor name in ['EL_SET']: o.environ[name] = '1'",
    "import os\nos.environ.setdefault('EL_SET', '1')",
    "from os import environ as e\ne.update(EL_SET='1')",
    "def prepare():\n    import os\n    os.environ |= {'EL_SET': '1'}\nprepare()",
    "getattr(__import__('os'), 'environ')['EL_SET'] = '1'",
    "import os\nx = os.environ['EL_SET'] = '1'",
    "import os\nif 'EL_SET' not in os.environ: os.environ['EL_SET'] = os.environ.get('PATH') or '1'",
    "import sys\nsys.path.insert(0, '/no/such/folder')",
)
HARMLESS = (
    "import os\nhome = os.environ.get('HOME')",
    "import os\npath = os.environ['PATH']",
    "import os\nis_set = 'EL_SET' in os.environ",
    "import os.path\nhere = os.path.dirname(__file__)",
    "x = {'sys': 1, 'path': 2}",
    "class Inner: path = None",
)
TORCH = ("import torch", "from torch import nn", "if True: import torch.nn as nn")


def stage(target: str) -> Any:
    return StageSpec.model_construct(target=target)


@st.composite
def sources(draw) -> dict[str, list[str]]:
    """Some modules of a user's, and what each says."""
    said: dict[str, list[str]] = {}
    for at, module in enumerate(MODULES):
        plain = [later.removesuffix(".__init__") for later in MODULES[at + 1 :]]
        imports = [f"import {name}" for name in plain] + [f"from {name} import *" for name in plain]
        imports += [f"import importlib\nimportlib.import_module({name!r})" for name in plain]
        imports += ["from . import inner", "from .inner import x"] if module == "pack.__init__" else []
        choices = [st.sampled_from(HARMLESS), st.sampled_from(TORCH)]
        choices += [st.sampled_from(imports)] * 2 if imports else []
        choices += [st.sampled_from(PREPARES)] if draw(st.booleans()) else []
        said[module] = [*draw(st.lists(st.one_of(choices), max_size=4)), "x = 1"]
    return said


@contextmanager
def written(said: dict[str, list[str]]) -> Iterator[Path]:
    """A folder with the modules, beside a torch that notes what it finds; all is as it was afterwards."""
    environment, path, modules = dict(os.environ), list(sys.path), dict(sys.modules)
    with tempfile.TemporaryDirectory() as folder:
        installed, user = Path(folder, "site-packages"), Path(folder, "user")
        (installed / "torch" / "nn").mkdir(parents=True)
        note = "import os, sys\nfound = os.environ.get('EL_SET'), '/no/such/folder' in sys.path\n"
        (installed / "torch" / "__init__.py").write_text(note)
        (installed / "torch" / "nn" / "__init__.py").write_text("")
        (user / "pack").mkdir(parents=True)
        for module, statements in said.items():
            text = "\n".join(statements) + "\nclass Stage: x = 1\n"
            user.joinpath(*module.split(".")).with_suffix(".py").write_text(text)
        os.environ.pop("EL_SET", None)
        for name in [name for name in sys.modules if name.partition(".")[0] in ("torch", "numpy")]:
            del sys.modules[name]
        sys.path.insert(0, str(installed))
        importlib.invalidate_caches()
        try:
            yield user
        finally:
            sys.path[:] = path
            sys.modules.clear()
            sys.modules.update(modules)
            os.environ.clear()
            os.environ.update(environment)


@settings(max_examples=examples(300), deadline=None)
@given(said=sources())
def test_no_stage_finds_a_torch_that_was_imported_before_what_it_prepared(said: dict[str, list[str]]) -> None:
    with written(said) as folder:
        early = imports_of([stage("stage.py:Stage")], folder)
        sys.path.insert(0, str(folder))
        import_file(folder / "stage.py", "evenload_test_stage")
        torch = sys.modules.get("torch")
        if "torch" in early:
            assert torch is None or torch.found == (None, False), early
        elif torch is not None and not any(one in PREPARES for lines in said.values() for one in lines):
            pytest.fail("it could have been imported once for all")


def test_another_stage_of_the_job_may_prepare_what_it_imports() -> None:
    said = {"late": ["import torch"], "early": [PREPARES[0]]}
    with written(said) as folder:
        late, early = stage("late.py:Stage"), stage("early.py:Stage")
        assert imports_of([late], folder) == ("torch",)
        assert imports_of([late, early], folder) == imports_of([early, late], folder) == ()


@pytest.mark.parametrize("name", ["torch.py", "torch/__init__.py", "pack/torch.py"])
def test_a_file_of_the_users_with_that_name_is_the_users(name: str) -> None:
    with written({"stage": ["import torch"]}) as folder:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("mine = 1\n")
        assert imports_of([stage("stage.py:Stage")], folder) == (("torch",) if "pack" in name else ())


@pytest.mark.parametrize("text", [b"\xff\xfe", b"import torch\0", b"x = " + b"(" * 5000])
def test_what_cannot_be_read_is_left_to_the_worker(text: bytes) -> None:
    with written({"stage": ["import torch", "import odd"]}) as folder:
        (folder / "odd.py").write_bytes(text)
        assert imports_of([stage("stage.py:Stage")], folder) == ()
        assert imports_of([stage("odd.py:Stage")], folder) == ()


@pytest.mark.parametrize("own", ["", "DEEP"])
@pytest.mark.parametrize("deep", ["x = 1" + " + 1" * 2_000, "if 0: x = 1\n" + "elif 1: x = 2\n" * 900])
def test_a_module_may_be_nested_deeply(own: str, deep: str) -> None:
    """As deeply as Python itself reads: code that a program wrote has such sums and conditions."""
    with written({"stage": [own.replace("DEEP", deep), "import torch, deep"], "deep": [deep]}) as folder:
        target = locate_target("stage.py:Stage", folder)
        before = read_code([target], folder)
        assert {"code stage.py", "code deep.py"} == {name for name in before.facts if name.startswith("code")}
        (folder / "deep.py").write_text(deep + "\nprint(end='')")
        after = read_code([target], folder)
        assert before.facts["code stage.py"] == after.facts["code stage.py"]
        assert before.facts["code deep.py"] != after.facts["code deep.py"]
        assert imports_of([stage("stage.py:Stage")], folder) == ("torch",)
