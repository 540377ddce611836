"""Make what the example needs, offline, in a few seconds: tiny models, pictures and pairs.jsonl.

    python examples/edit-and-score/build.py [--each 6]

The models are of the real classes (QwenImageEditPipeline, Qwen2.5-VL) with random weights: the edits mean
nothing, everything around them is as with the real ones.
"""

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from evenload.pipeline.stages import tiny

HERE = Path(__file__).parent
INSTRUCTIONS = {
    "color": "make the sky red",
    "object": "remove the person on the left",
    "style": "turn this photo into a watercolor painting",
    "background": "put it in front of a wall of bricks",
    "text": "write the word hello on the sign",
}


def build(folder: Path = HERE, each: int = 6) -> int:
    """Write models/, pictures/ and pairs.jsonl below ``folder``; returns how many pairs there are."""
    tiny.build(folder / "models")
    (folder / "pictures").mkdir(exist_ok=True)
    rows = []
    for at, (category, instruction) in enumerate(INSTRUCTIONS.items()):
        for number in range(each):
            name = f"{category}-{number}"
            tiny.picture(1000 * at + number).save(folder / "pictures" / f"{name}.png")
            row = {"id": name, "path": f"pictures/{name}.png", "instruction": instruction}
            rows.append({**row, "category": category})
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "pairs.jsonl").write_text(text)
    return len(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--each", type=int, default=6, help="pairs in each of the five categories")
    n_pairs = build(each=parser.parse_args().each)
    print(f"{n_pairs} pairs and two tiny models in {HERE}")
