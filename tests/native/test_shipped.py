"""The objects that come with the package: fresh, whole, and equal in effect to what is compiled here."""

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from evenload.native import machine, objects, store

pytest.importorskip("numba", reason="the extra kernels is not installed")
pytestmark = pytest.mark.skipif(
    not machine.baselines_here(), reason="no objects are shipped for this kind of processor"
)
ROOT = Path(__file__).parents[2]
ASK = """if True:
    import json, sys
    import numpy as np
    from evenload.balance.flow import route
    from evenload.moe import Fleet, place, rebalance_experts
    from evenload.native import objects
    loads = np.random.default_rng(0).integers(1, 100, (3, 2, 32)).astype(float)
    slots = np.arange(40) % 32
    answers = [route(slots, np.arange(32) ** 2, 8, **options).quotas.tolist()
               for options in ({}, {"speeds": range(1, 9)}, {"even": True})]
    answers.append(rebalance_experts(loads[0], 40, 4, 2, 8).phy2log.tolist())
    answers.append(place(loads, Fleet((5,) * 8)).phy2log.tolist())
    print(json.dumps({"answers": answers, "how": sorted({o.how for o in objects.origins}),
                      "numba": "numba" in sys.modules}))
"""


TINY = """if True:
    import numpy as np
    from evenload.native import objects
    from evenload.native.kernel import compiled

    @compiled
    def doubled(numbers):
        total = 0
        for i in range(len(numbers)):
            total += 2 * numbers[i]
        return total

    print(doubled(np.arange(10)), objects.origins[0].how)
"""


@pytest.fixture
def started(popen):
    """``started(code, cache)`` is a process at ``code``, with a folder of its own for compiled kernels."""

    def start(code, cache, **variables):
        environment = os.environ | {"EVENLOAD_KERNEL_CACHE": str(cache)} | variables
        return popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)

    return start


@pytest.fixture
def ask(started):
    """``ask(cache)`` is what a process says of its first answers."""
    return lambda cache, **variables: json.loads(started(ASK, cache, **variables).communicate(timeout=550)[0])


def test_every_object_is_there_and_fresh():
    """If this fails: python scripts/build_kernels.py, and commit what it made."""
    command = [sys.executable, str(ROOT / "scripts/build_kernels.py"), "--check"]
    assert subprocess.run(command, capture_output=True, text=True, check=False, timeout=550).stdout == ""


def test_first_answers_need_no_compiler(tmp_path, ask):
    here = ask(tmp_path / "a")
    assert (here["how"], here["numba"]) == (["shipped"], False)
    assert not list(tmp_path.iterdir())


def test_of_four_processes_one_compiles_and_the_others_wait_for_it(tmp_path, started):
    four = [started(TINY, tmp_path / "c") for _ in range(4)]
    answers = sorted(process.communicate(timeout=550)[0].split() for process in four)
    assert answers == [["90", "cached"]] * 3 + [["90", "compiled"]]
    (kept,) = (tmp_path / "c").iterdir()
    assert kept.name.startswith("doubled-")


@pytest.mark.slow
def test_what_is_compiled_here_answers_as_what_is_shipped(tmp_path, ask):
    compiled = ask(tmp_path / "a", EVENLOAD_KERNELS="compile")
    assert compiled["how"] == ["compiled"]
    assert compiled["answers"] == ask(tmp_path / "b")["answers"]


@pytest.mark.parametrize(
    "damage", [lambda b: b[:-9], lambda b: b"", lambda b: zlib.compress(zlib.decompress(b)[:-1] + b"!")]
)
def test_a_damaged_object_is_not_used(damage, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(objects, "FOLDER", tmp_path)
    path, key = objects.shipped_file("some", "its code", machine.baselines_here()[0], frozenset())
    path.parent.mkdir()
    path.write_bytes(objects.packed(key, b"code"))
    assert objects.read_shipped(path, key) == b"code"
    path.write_bytes(damage(path.read_bytes()))
    assert objects.read_shipped(path, key) is None
    assert "is not used" in caplog.text


def test_other_code_has_another_file_and_another_key():
    facts = [("f", "one", "x86-64-v3"), ("f", "two", "x86-64-v3"), ("f", "one", "x86-64-v4")]
    files = [objects.shipped_file(*three, frozenset()) for three in facts]
    assert len({path for path, _ in files}) == len({key for _, key in files}) == 3
    assert store.unsealed(files[1][1], store.sealed(files[0][1], b"code")) is None


def test_an_unknown_processor_is_refused(monkeypatch):
    monkeypatch.setenv("EVENLOAD_PROCESSOR", "x86-64-v9")
    with pytest.raises(Exception, match="x86-64-v9"):
        machine.host_features()
