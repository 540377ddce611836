"""The cases of ``benchmarks/executor_faults.py`` with evenload alone: each as a program of its own."""

from types import ModuleType

import pytest
from loaded_programs import loaded


@pytest.fixture(scope="module")
def matrix() -> ModuleType:
    with loaded("benchmarks", "executor_faults") as (module,):
        yield module


@pytest.mark.slow
def test_every_cell_is_green(matrix: ModuleType) -> None:
    faults = [fault for fault in matrix.FAULTS if "GB" not in fault]  # that one needs 14 GB of memory
    verdicts = {
        fault: matrix.verdict(fault, "evenload", matrix.observe(fault, "evenload")) for fault in faults
    }
    # How long it takes is the benchmark's business: here others may work beside it.
    assert {fault: text for fault, text in verdicts.items() if text != "ok" and "takes" not in text} == {}
