"""Programs of the kinds that joblib's and CPython's pages show print the same on our executor.

The oracle is the other tool on the same program: joblib's plain loop, threads of ``concurrent.futures``.
"""

from concurrent.futures import ThreadPoolExecutor

from integrations import documented_examples as programs

import evenload.futures
import evenload.joblib


def test_joblibs_programs_print_the_same(tmp_path):
    theirs = programs.printed_by_joblib("sequential", tmp_path)
    assert len(theirs) == len(programs.JOBLIB)
    assert programs.printed_by_joblib("evenload", tmp_path) == theirs


def test_programs_of_concurrent_futures_print_the_same():
    with ThreadPoolExecutor(2) as pool:
        theirs = programs.printed_by_futures(pool)
    assert len(theirs) == len(programs.FUTURES)
    with evenload.futures.Executor("cpu*2") as pool:
        assert programs.printed_by_futures(pool) == theirs
