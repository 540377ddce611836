"""What earlier commits have of each result of a benchmark: for the small plots over dates on the docs' page.

``python scripts/result_history.py`` says how many versions of each there are. Without git, or without its
folder (as in an archive of the source), there are none.
"""

import argparse
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = "benchmarks/results"


def versions(root: Path = ROOT) -> dict[str, list[dict[str, Any]]]:
    """The committed versions of each result, the oldest first. One that cannot be read is left out."""
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return {}
    log = [git, "log", "--reverse", "--no-renames", "--raw", "--no-abbrev", "--format=", "--", FOLDER]
    changes = [line.split() for line in _said(log, root).splitlines() if line.startswith(":")]
    blobs = [(Path(one[5]).stem, one[3]) for one in changes if one[4] != "D" and one[5].endswith(".json")]
    found: dict[str, list[dict[str, Any]]] = {}
    for (name, _), text in zip(blobs, _contents([blob for _, blob in blobs], git, root), strict=False):
        try:
            page = json.loads(text)
        except ValueError:
            continue
        if isinstance(page, dict) and isinstance(page.get("rows"), list):
            found.setdefault(name, []).append(page)
    return found


def _contents(blobs: list[str], git: str, root: Path) -> list[bytes]:
    """What is in each of these objects, which one process of git reads."""
    said = _run([git, "cat-file", "--batch"], root, "\n".join(blobs).encode())
    found = []
    while said:
        head, _, rest = said.partition(b"\n")
        words = head.split()
        size = int(words[2]) if len(words) == 3 and words[2].isdigit() else None
        if size is None:  # "NAME missing": a clone that is not whole
            found.append(b"")
            said = rest
            continue
        found.append(rest[:size])
        said = rest[size + 1 :]
    return found


def _said(command: list[str], root: Path) -> str:
    return _run(command, root, b"").decode("utf-8", "replace")


def _run(command: list[str], root: Path, given: bytes) -> bytes:
    """What a command of git prints, nothing if it fails."""
    done = subprocess.run(command, cwd=root, input=given, capture_output=True, check=False)
    return b"" if done.returncode else done.stdout


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    for name, pages in sorted(versions().items()):
        print(f"{len(pages):4}  {name}")
