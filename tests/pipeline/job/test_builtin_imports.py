"""What workers import beforehand: modules that are there, and that leave a process fit to be forked."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from evenload.executor.worker.fork_main import _import
from evenload.executor.worker.threads import ONE_THREAD
from evenload.pipeline.job.builtin_stages import BUILTIN_STAGES, imports_of
from evenload.pipeline.run.machines.fleet import STAGE_HOST


def test_each_is_named_once() -> None:
    assert imports_of(["function", None, "command"]) == ()
    assert imports_of(["vlm_score", "image_edit", "torch_module"]) == (
        "torch",
        "transformers.modeling_utils",
        "diffusers.pipelines.pipeline_utils",
    )


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
