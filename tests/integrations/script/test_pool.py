"""CPython's cases of ``multiprocessing.Pool``, with the pools that ``evenload exec`` makes.

The oracle is CPython's own suite, which comes with its ``test`` package.
"""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow  # each starts tens of pools

SUITE = """
import sys, unittest

def cases():
    import test._test_multiprocessing as theirs
    scope = {"__name__": "__main__"}
    theirs.install_tests_in_module_dict(scope, sys.argv[1])
    named = {name: one for name, one in scope.items() if "Pool" in name and "Threads" not in name}
    globals().update(named)  # by which they are pickled
    kinds = named.values()
    return scope, unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, kinds))

scope, suite = cases()

if __name__ == "__main__":
    from evenload.integrations.script import takeover
    run = takeover.install(None)
    scope["setUpModule"]()
    ended = unittest.TextTestRunner().run(suite)
    scope["tearDownModule"]()
    assert ended.testsRun > 40, ended.testsRun
    assert sum(work.n_items for work in run.works) > 1000
    sys.exit(not ended.wasSuccessful())
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_cases_of_cpython(tmp_path, method):
    pytest.importorskip("test._test_multiprocessing", reason="this Python has no package `test`")
    (tmp_path / "suite.py").write_text(SUITE)
    ended = subprocess.run(
        [sys.executable, tmp_path / "suite.py", method], capture_output=True, text=True, timeout=500
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
