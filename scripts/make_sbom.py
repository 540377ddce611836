"""Write build/sbom.json: what an installed evenload consists of, in the form of CycloneDX.

    python scripts/make_sbom.py            # the core
    python scripts/make_sbom.py --extras   # with every package of the extra "all"

evenload is installed from this tree into an empty environment, so that nothing of this machine is listed;
cyclonedx-bom runs in another one, so that it is not listed either.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LISTER = "cyclonedx-bom>=7,<8"


def main() -> int:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--extras", action="store_true", help="with every package of the extra 'all'")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "sbom.json")
    options = parser.parse_args()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as text:
        listed = environment(Path(text) / "listed", with_pip=False)
        lister = environment(Path(text) / "lister", with_pip=True)
        install(lister, listed, f"{ROOT}[all]" if options.extras else str(ROOT))
        install(lister, lister, LISTER)
        command = [lister, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--validate"]
        facts = ["--pyproject", ROOT / "pyproject.toml", "--mc-type", "library"]
        subprocess.run([*command, *facts, "--output-file", options.out, listed], check=True)
    names = [part["name"] for part in json.loads(options.out.read_text(encoding="utf-8"))["components"]]
    print(f"{options.out}: {len(names)} components: {', '.join(sorted(names)[:12])}")
    return 0 if "numpy" in names else 1


def environment(folder: Path, *, with_pip: bool) -> Path:
    venv.create(folder, with_pip=with_pip)
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def install(lister: Path, python: Path, package: str) -> None:
    pip = [lister, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, package], check=True)


if __name__ == "__main__":
    sys.exit(main())
