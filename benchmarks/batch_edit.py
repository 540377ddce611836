"""MultiDeviceImageEdit: what the first call costs, and what the next ones cost, whose models are there.

    python benchmarks/batch_edit.py [--pictures 8] [--calls 5]

On tiny models of the real classes, made offline. Writes benchmarks/results/batch_edit.json.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from record import record

from evenload import MultiDeviceImageEdit
from evenload.pipeline.stages import tiny


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", type=int, default=8)
    parser.add_argument("--calls", type=int, default=5)
    asked = parser.parse_args()
    pictures = [tiny.picture(number) for number in range(asked.pictures)]
    words = ["make the sky red"] * asked.pictures
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = tiny.build(folder) / "edit"
        for devices in ("cpu*1", "cpu*2"):
            took = []
            with MultiDeviceImageEdit(Path(model), devices=devices) as editor:
                for _ in range(asked.calls + 1):
                    began = time.perf_counter()
                    editor.batch_edit(pictures, words, num_inference_steps=1)
                    took.append(time.perf_counter() - began)
            rows.append({"devices": devices, "first_s": took[0], "next_s": statistics.median(took[1:])})
            print(f"{devices}  first call {took[0]:.2f} s  next {rows[-1]['next_s']:.2f} s")
    record("batch_edit", rows, pictures=asked.pictures, calls=asked.calls)


if __name__ == "__main__":
    main()
