"""What is left as it was is named at the end, and does what it would. The oracle is the library itself."""

import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow  # libraries are imported in each process
EXEC = [sys.executable, "-m", "evenload", "exec"]
LIMIT_S = 500
CASES = {
    "split_between_processes of accelerate": (
        "accelerate",
        [],
        "from accelerate import PartialState\n"
        "with PartialState(cpu=True).split_between_processes([1, 2, 3]) as mine:\n"
        "    print(mine)\n",
    ),
    "accelerate launch or torchrun": (
        "torch.distributed.run",
        ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"],
        "import os\nprint('rank', flush=True)\n",
    ),
    "start_multi_process_pool of sentence-transformers": (
        "sentence_transformers",
        [],
        "import torch\n"
        "from sentence_transformers import SentenceTransformer\n"
        "if __name__ == '__main__':\n"
        "    model = SentenceTransformer(modules=[torch.nn.Identity()], device='cpu')\n"
        "    pool = model.start_multi_process_pool(['cpu'])\n"
        "    print(sorted(pool))\n"
        "    model.stop_multi_process_pool(pool)\n",
    ),
    "multiprocess.Pool": (
        "datasets",
        [],
        "import datasets\n"
        "if __name__ == '__main__':\n"
        "    datasets.disable_progress_bars()\n"
        "    rows = datasets.Dataset.from_dict({'x': [*range(8)]})\n"
        "    print(rows.map(lambda row: {'y': row['x'] ** 2}, num_proc=2)['y'][:])\n",
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_what_is_left_is_named_and_works(tmp_path, what):
    library, words, source = CASES[what]
    pytest.importorskip(library, reason=f"{library} is not installed", exc_type=ImportError)
    (tmp_path / "own.py").write_text(source)
    plain, ours = (
        subprocess.run(
            [*start, sys.executable, *words, "own.py"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=LIMIT_S,
        )
        for start in ([], EXEC)
    )
    assert (ours.stdout, ours.returncode) == (plain.stdout, 0), ours.stderr
    assert plain.stdout
    assert re.search(f"^  left as it was: {what}", ours.stderr, re.MULTILINE), ours.stderr
