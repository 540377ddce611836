"""joblib's cases of backends with "evenload" in the place of loky; those that do not apply have a reason.

The cases come in joblib's wheel.
"""

import inspect
import itertools
import sys

import pytest

import evenload.joblib  # noqa: F401  (makes the backend known)

with pytest.MonkeyPatch.context() as patch:
    # Theirs imports it if it is there; that would change how exceptions are pickled in all other tests.
    patch.setitem(sys.modules, "distributed", None)
    import joblib.test.test_parallel as theirs

pytestmark = pytest.mark.slow  # hundreds of pools

PROGRAM = "a program that uses joblib alone; test_joblib_backend.py has one that imports evenload.joblib"
SHARED = "large arrays travel in shared memory, and not as memory maps of files"
EVERY_DEVICE = "n_jobs=None is every device, as with Dask"
NOT_APPLICABLE = {
    "test_nested_backend_in_sequential[context=parallel_config,n_jobs=None]": EVERY_DEVICE,
    "test_nested_backend_in_sequential[context=parallel_backend,n_jobs=None]": EVERY_DEVICE,
    "test_parallel_with_interactively_defined_functions": PROGRAM,
    "test_parallel_with_unpicklable_functions_in_args": PROGRAM,
    "test_thread_bomb_mitigation": "a Parallel within a job is of its device, so that there is no bomb",
    "test_auto_memmap_on_arrays_from_generator": SHARED,
    "test_memmapping_leaks": SHARED,
}
"""By name of a case, or of a case with its parameters."""


def axes_of(function):
    """Each parametrization of a case: its names, and the rows of values, with ours for a backend."""
    for mark in getattr(function, "pytestmark", ()):
        if mark.name != "parametrize":
            continue
        names = [name.strip() for name in mark.args[0].split(",")]
        rows = [row if len(names) > 1 else (row,) for row in map(value_of, mark.args[1])]
        for at, name in enumerate(names):
            if name.endswith("backend"):
                rows = [(*row[:at], "evenload", *row[at + 1 :]) for row in rows if row[at] == like(names)]
        yield names, rows


def like(names):
    """The backend whose place ours takes."""
    return "threading" if "error" in names else "loky"  # loky's workers are lost with one of two generators


def value_of(row):
    return row.values if hasattr(row, "values") and hasattr(row, "marks") else row


def cases():
    for name, function in vars(theirs).items():
        axes = list(axes_of(function)) if name.startswith("test_") else []
        if not any(one.endswith("backend") for names, _ in axes for one in names):
            continue
        for rows in itertools.product(*(rows for _, rows in axes)):
            names = itertools.chain.from_iterable(names for names, _ in axes)
            given = dict(zip(names, itertools.chain.from_iterable(rows), strict=True))
            label = ",".join(f"{key}={shown(value)}" for key, value in given.items() if value != "evenload")
            why = NOT_APPLICABLE.get(f"{name}[{label}]") or NOT_APPLICABLE.get(name)
            marks = [mark for mark in function.pytestmark if mark.name == "skipif"]
            marks += [pytest.mark.skip(reason=why)] if why else []
            yield pytest.param(function, given, id=f"{name}[{label}]", marks=marks)


def shown(value):
    return "".join(one for one in str(getattr(value, "__name__", value)) if one.isalnum() or one in "_-<>=")[
        :20
    ]


@pytest.mark.parametrize(("function", "given"), list(cases()))
@pytest.mark.filterwarnings("default")
def test_case_of_joblib(function, given, request):
    fixtures = {
        name: request.getfixturevalue(name)
        for name in inspect.signature(function).parameters
        if name not in given
    }
    function(**given, **fixtures)
