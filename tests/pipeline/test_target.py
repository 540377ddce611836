"""Tests where a stage's code is looked for. The oracle is Python itself, started in the job file's folder."""

import importlib
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pipeline.written_jobs import write_job

from evenload.errors import SpecError
from evenload.pipeline import Pipeline, Stage
from evenload.pipeline.target import CodeTarget, lacks_method, load_target

BODY = """
class S(Base):
    def __init__(self, context=None): self.context = context
    def __call__(self, inputs, item): return {self.context.stage: self.value}
"""
FILES = {
    "pkg/__init__.py": "",
    "pkg/base.py": "class Base: value = {value!r}\n",
    "pkg/relative.py": "from .base import Base\n" + BODY,
    "pkg/absolute.py": "from pkg.base import Base\n" + BODY,
    "pkg/deep/__init__.py": "",
    "pkg/deep/up.py": "from ..base import Base\n" + BODY,
    "bare/base.py": "class Base: value = {value!r}\n",  # a folder without __init__.py
    "bare/relative.py": "from .base import Base\n" + BODY,
    "src/own/__init__.py": "from own.base import Base\n" + BODY,
    "src/own/base.py": "class Base: value = {value!r}\n",
    "src/own/relative.py": "from .base import Base\n" + BODY,
}
TARGETS = {
    "pkg.relative:S": "pkg.relative",
    "pkg.absolute:S": "pkg.absolute",
    "pkg.deep.up:S": "pkg.deep.up",
    "pkg/relative.py:S": "pkg.relative",
    "pkg/absolute.py:S": "pkg.absolute",
    "pkg/deep/up.py:S": "pkg.deep.up",
    "bare/relative.py:S": "bare.relative",
    "bare.relative:S": "bare.relative",
    "src/own/relative.py:S": "own.relative",
}


def make_job(folder: Path, value: str, *targets: str) -> Pipeline:
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{value!r}", repr(value)))
    stages = "".join(f"  - {{name: s{at}, target: '{one}', needs: []}}\n" for at, one in enumerate(targets))
    return Pipeline.from_yaml(write_job(folder, "", stages, 1))


def values_of(pipeline: Pipeline, backend: str) -> list[object]:
    result = pipeline.run(backend=backend)
    assert result.status == "done", result.failures
    return [value for _, value in sorted(result[0].outputs.items())]


def test_code_is_found_as_by_a_script_beside_the_job(tmp_path: Path) -> None:
    pipeline = make_job(tmp_path, "first", *TARGETS)
    lines = [f"from {module} import S; print(S().value)" for module in TARGETS.values()]
    program = "\n".join(["import sys; sys.path[:0] = ['', 'src']", *lines])
    script = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=500
    )
    assert values_of(pipeline, "process") == script.stdout.split() == ["first"] * len(TARGETS)
    pipeline.try_imports()
    kept = make_job(tmp_path, "second", *TARGETS).plan().kept
    assert [(one["n_kept"], one["n_to_do"]) for one in kept] == [(0, 1)] * len(TARGETS), "another base"


def test_packages_of_one_name_in_two_jobs_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", sys.modules)
    for name in ("first", "second", "first"):
        assert values_of(make_job(tmp_path / name, name, "pkg.relative:S"), "inline") == [name]
    for known in [one for one in sys.modules if one.partition(".")[0] == "pkg"]:
        del sys.modules[known]


def test_a_program_keeps_its_modules_whatever_its_jobs_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs of functions run in the program itself: both modules are still those that it imported."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("kept_one", "kept_two"):
        (tmp_path / f"{name}.py").write_text("class Own: ...\ndef f(row): return row['n']\n")
    one, two = (importlib.import_module(name) for name in ("kept_one", "kept_two"))
    for module in (one, two, one, two):
        pipeline = Pipeline([Stage(module.f, name="f")], folder=tmp_path)
        assert pipeline.run([{"n": 1}], backend="inline", out=tmp_path / "runs").status == "done"
        shutil.rmtree(tmp_path / "runs")
    assert type(pickle.loads(pickle.dumps(one.Own()))) is one.Own
    assert (sys.modules.pop("kept_one"), sys.modules.pop("kept_two")) == (one, two)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = {}['pth']\n", "KeyError: 'pth'"),
        ("import os\nos._exit(7)\n", "ended the process with exit code 7"),
        ("import sys\nsys.exit('no licence')\n", "SystemExit: no licence"),
        ("print('loud')\n", ""),
    ],
)
def test_what_fails_to_import_is_told_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    pipeline = make_job(tmp_path, "x", "pkg/relative.py:S")
    (tmp_path / "pkg/base.py").write_text(text + "class Base: value = 1\n")
    if not said:
        pipeline.try_imports()
        return
    with pytest.raises(SpecError) as caught:
        pipeline.try_imports()
    assert said in str(caught.value)
    assert "stages[0].target (line 5)" in str(caught.value)
    if "Error" in said:
        assert f"{tmp_path / 'pkg/base.py'} line 1" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "is_seen"),
    [
        ("class S: pass\n", True),
        ("class S:\n    def __call__(self, i, t): pass\nclass T:\n    def batch(self): pass\n", True),
        ("class S:\n    def batch(self): pass\n", False),
        ("class S:\n    batch = print\n", False),
        ("class S:\n    def __init__(self): self.batch = print\n", False),
        ("class S:\n    def __getattr__(self, name): return print\n", False),
        ("class S: pass\nS.batch = print\n", False),
        ("class S: pass\nsetattr(S, 'batch', print)\n", False),
        ("class Base:\n    def batch(self): pass\nclass S(Base): pass\n", False),
        ("class T:\n    def batch(self): pass\nclass S: pass\nS = T\n", False),
        ("class T:\n    def batch(self): pass\ndef more(one): return T\n@more\nclass S: pass\n", False),
    ],
)
def test_a_method_is_missed_only_where_it_is_not_there(tmp_path: Path, text: str, is_seen: bool) -> None:
    """The oracle is Python: an instance has the method, or it has not."""
    (tmp_path / "s.py").write_text(text)
    target = CodeTarget("s", "S", tmp_path / "s.py")
    has_it = hasattr(load_target(target)(), "batch")
    assert lacks_method(target, "batch") == is_seen == (not has_it)
