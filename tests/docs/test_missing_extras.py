"""Whatever the documents import, without any extra: it works, or the error is the install line."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
IMPORT = re.compile(
    r"^ *(from evenload[\w.]* import (?:\([\w\s,]+\)|[\w, ]+)|import evenload\.[\w.]+)", re.MULTILINE
)

PROGRAM = """
import sys

absent = set(sys.argv[1].split(","))

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from evenload.cli import main
from evenload.errors import EvenloadError, MissingExtra

for statement in sys.argv[2:]:
    try:
        exec(statement, {})
    except MissingExtra as error:
        assert "pip install" in str(error), statement
    except Exception as error:
        print(f"{statement}: {type(error).__name__}: {error}")
for command in ("run", "tune", "compare"):
    try:
        main(["clients", command, "fl.yaml"])
    except (SystemExit, MissingExtra) as error:
        found = getattr(error, "exit_code", getattr(error, "code", None))
        if found != 3:
            print(f"evenload clients {command} ends with {found}")
    except Exception as error:
        print(f"evenload clients {command}: {type(error).__name__}: {error}")
"""


def absent_modules() -> set[str]:
    """The modules of all packages that only an extra brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [line for extra in project["optional-dependencies"].values() for line in extra]
    names = {re.match(r"[\w.-]+", line)[0].lower().replace("_", "-") for line in lines} - {"evenload"}
    return {
        module
        for module, holders in packages_distributions().items()
        if any(holder.lower().replace("_", "-") in names for holder in holders)
    }


def test_an_import_of_the_documents_says_which_extra_it_lacks(tmp_path):
    statements = sorted({found[1] for page in PAGES for found in IMPORT.finditer(page.read_text("utf-8"))})
    absent = absent_modules()
    assert {"torch", "yaml", "numba"} <= absent
    assert len(statements) > 50
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ",".join(sorted(absent)), *statements],
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
