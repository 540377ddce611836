"""Processor time of asking whether code and items are the same: 200 modules, 10,000 items.

    python benchmarks/same_code.py [--modules 200] [--items 10000] [--repeat 5]

Each time in a new interpreter, in which the modules are imported already.
"""

import argparse
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ASK = """
import sys, time
sys.setrecursionlimit(20_000)
import m0
from evenload.same_code import CodeFacts, ItemFingerprints
began = time.process_time()
facts = CodeFacts(m0.f).facts
code = time.process_time()
of_item = ItemFingerprints()
for item in range(int(sys.argv[1])): of_item(item)
n_files = sum(name.startswith("code ") for name in facts)
print(n_files, 1000 * (code - began), 1000 * (time.process_time() - code))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("modules", 200), ("items", 10_000), ("repeat", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        for at in range(given.modules):
            later = rng.sample(range(at + 1, given.modules), min(3, given.modules - at - 1)) if at else []
            later = sorted({*later, *([at + 1] if at + 1 < given.modules else [])})
            body = "".join(f"import m{one}\n" for one in later)
            body += "".join(f"def f{n}(x):\n    # adds\n    return x + {n}\n" for n in range(15))
            calls = "".join(f" + m{one}.C" for one in later)
            Path(folder, f"m{at}.py").write_text(f"{body}C = {at}\ndef f(x):\n    return x{calls}\n")
        rows = []
        for _ in range(given.repeat):
            program = [sys.executable, "-c", ASK, str(given.items)]
            done = subprocess.run(program, cwd=folder, capture_output=True, text=True, check=True)
            rows.append(tuple(map(float, done.stdout.split())))
    n_files = int(rows[0][0])
    best = [min(row[at] for row in rows) for at in (1, 2)]
    print(
        f"{n_files} files: {best[0]:.1f} ms; {given.items} items: {best[1]:.1f} ms (least of {given.repeat})"
    )


if __name__ == "__main__":
    main()
