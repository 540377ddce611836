"""The cases of ``benchmarks/executor_faults.py`` with evenload alone: each as a program of its own."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        spec = importlib.util.spec_from_file_location("executor_faults", BENCHMARKS / "executor_faults.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    for name in ("record", "peers", "fault_peers"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_every_cell_is_green(matrix: ModuleType) -> None:
    faults = [fault for fault in matrix.FAULTS if "GB" not in fault]  # that one needs 14 GB of memory
    verdicts = {
        fault: matrix.verdict(fault, "evenload", matrix.observe(fault, "evenload")) for fault in faults
    }
    # How long it takes is the benchmark's business: here others may work beside it.
    assert {fault: text for fault, text in verdicts.items() if text != "ok" and "takes" not in text} == {}
