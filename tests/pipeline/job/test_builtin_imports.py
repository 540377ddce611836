"""What workers import beforehand: modules that are there, and that leave a process fit to be forked."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evenload.executor.worker.fork_main import _import
from evenload.executor.worker.threads import ONE_THREAD
from evenload.pipeline.job.builtin_stages import BUILTIN_STAGES
from evenload.pipeline.job.spec import StageSpec
from evenload.pipeline.run.machines.fleet import STAGE_HOST, imports_of


def stage(kind: str | None, target: str = "", **params: str) -> Any:
    return StageSpec.model_construct(kind=kind, target=target, params=params)


def test_each_is_named_once(tmp_path: Path) -> None:
    assert imports_of(map(stage, ["function", None, "command"]), tmp_path) == ()
    assert imports_of(map(stage, ["vlm_score", "image_edit", "torch_module"]), tmp_path) == (
        "torch",
        "transformers.modeling_utils",
        "diffusers.pipelines.pipeline_utils",
    )


def test_a_stage_of_the_users_imports_what_its_source_says(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("class Late:\n    def __init__(self): import torch.nn\n")
    (tmp_path / "plain.py").write_text("from numpy.fft import fft\nfrom . import torch\ndef size(): 0\n")
    (tmp_path / "no.py").write_text("import torch\nclass No: (\n")
    own, function = stage(None, "late.py:Late"), stage("function", function="plain.py:size")
    assert imports_of([own], tmp_path) == ("torch",)
    assert imports_of([function, own, function], tmp_path) == ("numpy", "torch")
    set_first = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\nclass Late: 0\n"
    for name, source in {
        "sets.py": set_first,
        "from.py": set_first.replace("import os", "from os import environ").replace("os.e", "e"),
        "puts.py": "import os\nos.putenv('A', 'b')\nimport torch\nclass Late: 0\n",
        "dot.py": "from dotenv import load_dotenv\nload_dotenv()\nimport torch\nclass Late: 0\n",
    }.items():
        (tmp_path / name).write_text(source)
        assert imports_of([stage(None, f"{name}:Late")], tmp_path) == (), name
    for target in ("no.py:No", "none.py:None", "late.py:Never", "no_such_module:X", "math:sqrt", "nothing"):
        assert imports_of([stage(None, target)], tmp_path) == (), target


NAMES = sorted({STAGE_HOST, *(name for kind in BUILTIN_STAGES.values() for name in kind.imports)})


@pytest.mark.parametrize("name", NAMES)
def test_they_are_there(name: str) -> None:
    """Looked for as files, as importing them takes seconds; one that is missing would only be left out."""
    package, *inner = name.split(".")
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed")
    (folder,) = spec.submodule_search_locations or ()
    assert not inner or Path(folder, *inner).with_suffix(".py").is_file()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="workers are forked on Linux only")
def test_a_process_that_has_imported_all_of_them_may_be_forked() -> None:
    if any(importlib.util.find_spec(name.partition(".")[0]) is None for name in NAMES):
        pytest.skip("the stages' packages are not installed")
    program = (
        f"from {_import.__module__} import _import; assert _import({NAMES}); import sys; print(*sys.modules)"
    )
    whole = {**os.environ, **ONE_THREAD}  # as the fork server's
    done = subprocess.run(
        [sys.executable, "-c", program], env=whole, capture_output=True, text=True, timeout=550
    )
    assert done.returncode == 0, done.stderr
    assert set(NAMES) <= set(done.stdout.split())
