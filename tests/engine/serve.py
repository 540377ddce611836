"""Serve a tiny mixture of experts by vLLM on expert-parallel ranks, and write down what it answers.

    python serve.py MODEL OUT MODE RANKS      MODE: none (nothing is balanced) | sync | async

Prompts drift: the first half has words of one kind, the second of another, then one word again and again.
"""

import json
import os
import sys
from pathlib import Path

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}
N_REDUNDANT, EVERY = 4, 8
MOST_TOKENS = 24
PROMPTS = [
    *(f"the device {word} items" for word in ("runs", "waits for", "takes", "loads", "has", "ends")),
    *(f"`{word}` = [0, 1, 2]" for word in ("rank", "seed", "stage", "chunk", "policy", "report")),
    *["expert expert expert"] * 6,
]


def main(model: str, out: Path, mode: str, n_ranks: int) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(cpus[rank % len(cpus)]) for rank in range(n_ranks))
    from vllm import LLM, SamplingParams  # pyrefly: ignore

    balancing = {
        "enable_eplb": True,
        "eplb_config": {
            "num_redundant_experts": N_REDUNDANT,
            "window_size": EVERY,
            "step_interval": EVERY,
            "use_async": mode == "async",
            "communicator": "torch_gloo",
            "log_balancedness": True,
        },
    }
    llm = LLM(
        model,
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=6,
        dtype="float32",
        tensor_parallel_size=n_ranks,
        enable_expert_parallel=True,
        **({} if mode == "none" else balancing),
    )
    sampling = SamplingParams(max_tokens=MOST_TOKENS, temperature=0, ignore_eos=True)
    answers = [list(one.outputs[0].token_ids) for one in llm.generate(PROMPTS, sampling)]
    out.write_text(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
