"""An engine's own choice of copies, taken out of its wheel, beside the formula of benchmarks/moe_engines.py.

    TRITON_INTERPRET=1 python engine_choices.py vllm|sglang FOLDER SCRATCH

FOLDER holds the unpacked wheel, and the functions go to a module in SCRATCH, as Triton reads their source.
vLLM's is a Triton kernel, which runs in the interpreter here, but for the record of loads behind the choice,
which the interpreter does not take; SGLang's is plain torch.
"""

import ast
import importlib
import sys
import types
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from moe_engines import KNUTH, by_place

from evenload.moe import rebalance_experts

HEAD = """from __future__ import annotations
import torch
import triton
import triton.language as tl
"""
SOURCES = {
    "vllm": (
        "vllm/model_executor/layers/fused_moe/router/base_router.py",
        ("_eplb_map_and_record_i32_kernel", "_eplb_map_and_record_triton"),
    ),
    "sglang": (
        "sglang/srt/eplb/expert_location_dispatch.py", ("_topk_ids_logical_to_physical_dynamic",),
    ),
}  # fmt: skip


def functions_of(engine, folder, scratch):
    """A module with the engine's functions as they are written in its wheel."""
    file, names = SOURCES[engine]
    tree = ast.parse(Path(folder, file).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            texts = [ast.unparse(one) for one in node.body]
            ends = [i for i, text in enumerate(texts) if text.startswith("record_enabled =")]
            node.body = node.body[: ends[0]] if ends else node.body
    found = {node.name: ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    Path(scratch, "from_wheel.py").write_text(HEAD + "\n\n".join(found[name] for name in names))
    sys.path.insert(0, str(scratch))
    return importlib.import_module("from_wheel")


def chosen(engine, module, ids, log2phy, n_copies, n_slots):
    if engine == "sglang":
        info = types.SimpleNamespace(
            partial_logical_to_all_physical_map=log2phy, rank_invariant=True,
            partial_logical_to_all_physical_map_num_valid=n_copies,
        )  # fmt: skip
        return module._topk_ids_logical_to_physical_dynamic(ids, info)
    load = torch.zeros(n_slots, dtype=torch.int32)
    return module._eplb_map_and_record_triton(ids, log2phy, n_copies, load, torch.ones(1), None)


def main(engine, folder, scratch):
    module, rng = functions_of(engine, folder, scratch), np.random.default_rng(0)
    for n_experts, n_slots, n_gpus in ((64, 80, 16), (8, 24, 4), (5, 6, 2)):
        placement = rebalance_experts(rng.lognormal(0, 1, (1, n_experts)), n_slots, 1, 1, n_gpus)
        log2phy, n_copies = np.asarray(placement.log2phy)[0], np.asarray(placement.logcnt)[0]
        for n_tokens in (1, 67, 300):
            ids = rng.integers(0, n_experts, (n_tokens, 4))
            theirs = chosen(engine, module, *map(torch.from_numpy, (ids, log2phy, n_copies)), n_slots)
            ours = by_place(ids, log2phy, n_copies, {"vllm": KNUTH, "sglang": 1}[engine])
            np.testing.assert_array_equal(theirs.numpy(), ours)
    sys.stdout.write("all equal")


if __name__ == "__main__":
    main(*sys.argv[1:])
