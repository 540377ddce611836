import importlib
import pkgutil
import subprocess
import sys

import pytest

import evenload

HEAVY = (
    "numpy",
    "torch",
    "rich",
    "pydantic",
    "yaml",
    "scipy",
    "numba",
    "llvmlite",
    "wgpu",
    "ray",
    "multiprocessing",
)


@pytest.mark.parametrize("name", evenload.__all__)
def test_every_public_name_resolves(name):
    assert getattr(evenload, name) is not None


@pytest.mark.parametrize("package", ["evenload", "evenload.executor"])
def test_public_names_stay_what_they_are_when_all_modules_are_imported(package):
    """A room that had the name of a function would take its place once it is imported."""
    home = importlib.import_module(package)
    first = {name: getattr(home, name) for name in home.__all__}
    for module in pkgutil.walk_packages(evenload.executor.__path__, "evenload.executor."):
        if not module.name.startswith("evenload.executor.backends.ray"):
            importlib.import_module(module.name)
    assert {name: getattr(home, name) for name in home.__all__} == first
    assert callable(home.gang)


def test_dir_is_all_and_sorted():
    assert dir(evenload) == evenload.__all__ == sorted(evenload.__all__)


def test_names_that_are_not_there_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'mpa'"):
        evenload.mpa  # noqa: B018


def test_modules_are_reached_as_attributes():
    assert evenload.settings is importlib.import_module("evenload.settings")
    assert evenload.errors.ConfigError is evenload.errors.__dict__["ConfigError"]


@pytest.mark.parametrize(
    "module", ["errors", "events", "settings", "devices", "balance.metrics", "balance.partition"]
)
def test_each_modules_all_is_what_it_has(module):
    home = importlib.import_module(f"evenload.{module}")
    assert all(hasattr(home, name) for name in home.__all__)


LIGHT = (
    "import evenload",
    "evenload.__version__; dir(evenload); evenload.EvenloadError",
    "import evenload.settings, evenload.events, evenload.errors, evenload._optional",
    "from evenload.balance import metrics, partition, pack, migrate",
    "import evenload.cli",
    "import evenload.devices; evenload.devices.current()",
    "from evenload import DevicePool as P; p = P.discover(); p.select('all'); p.facts(); p.load('cpu:0')",
    "import evenload.cli.devices, evenload.cli.doctor, evenload.cli.completion",
    "from evenload.cli import main\ntry: main(['devices', '--json'])\nexcept SystemExit: pass",
)


def test_nothing_heavy_is_loaded_before_it_is_needed():
    """One program does all of it; after each step it says what it has loaded by then."""
    tell = f"print('===', *(name for name in {HEAVY!r} if name in sys.modules))"
    code = "import sys\n" + "".join(f"{step}\n{tell}\n" for step in LIGHT)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith("===")]
    assert told == ["==="] * len(LIGHT)


def test_importing_evenload_loads_nothing_but_itself_and_the_standard_library():
    tell = "import sys; before = set(sys.modules); import evenload; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-I", "-c", tell], capture_output=True, text=True, check=True, timeout=550
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded <= set(sys.stdlib_module_names) | {"evenload"}


def test_no_module_does_anything_when_it_is_imported():
    """Every module of the lower layers can be imported, and prints nothing."""
    packages = ("evenload.balance", "evenload.devices")
    names = [
        m.name for p in packages for m in pkgutil.walk_packages(importlib.import_module(p).__path__, f"{p}.")
    ]
    code = "import importlib\n" + "\n".join(f"importlib.import_module({name!r})" for name in names)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=550)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(names) > 20
