"""Part ``adapters``: LoRAs of one frozen base on the GPU, trained fused beside one after another.

Each row is the public call, from data sets to trained adapters, with all that belongs to it; the base is
small, as the call asks the model on the CPU first. ``distance`` is the largest difference of a weight from
the adapters that were trained in turn.
"""

import time
from typing import Any

from client_cases import plain
from part import NotHere, Part, main

NUMBERS = (4, 16, 32)  # adapters
RANK, LR = 16, 2.0**-4
STEPS, ROWS, TOKENS = 8, 4, 64  # of an adapter, a step, a row
SMALL = {
    "vocab_size": 4096, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 8, "intermediate_size": 1024,
}  # fmt: skip
TINY = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64,
}  # fmt: skip


def apart(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> float:
    """The largest difference of a weight."""
    return max(
        float((x[n].double() - y[n].double()).abs().max()) for x, y in zip(a, b, strict=True) for n in y
    )


def compared(part: Part, base: Any, n: int) -> None:
    """``n`` adapters in turn, and fused: milliseconds of a step of one, and how far they end apart."""
    import torch
    from clients_adapters import objective

    from evenload.clients import SGD, LoRA, Recipe, adapters

    recipe = Recipe(optimizer=SGD(LR), objective=objective, batch_size=ROWS, steps=STEPS)
    chance = torch.Generator().manual_seed(1)
    shape, n_words = (ROWS, 8 if part.pretend else TOKENS), base.config.vocab_size
    data = [{"ids": torch.randint(0, n_words, shape, generator=chance)} for _ in range(n)]
    form, in_turn, in_turn_s = LoRA(rank=RANK, targets=("*q_proj", "*v_proj")), None, 0.0
    for text in ("streams*1/eager", f"streams*1/fused:{n}"):
        how = {"strategy": plain(text, pretend=part.pretend), "devices": part.device}
        if not part.pretend:
            adapters(base, data, form, recipe=recipe, **how)  # once, so that kernels and memory are there
        began = time.perf_counter()
        found = adapters(base, data, form, recipe=recipe, **how)
        seconds = time.perf_counter() - began
        (plan,) = found.plans.values()
        weights = [dict(one.weights) for one in found]
        in_turn, in_turn_s = in_turn or weights, in_turn_s or seconds
        part.row(
            f"{n} adapters, {text}", adapter_step_ms=1e3 * seconds / (n * STEPS),
            x_in_turn=in_turn_s / seconds, distance=apart(in_turn, weights), ran=str(plan.strategy),
            reasons=str(dict(plan.reasons))[:300],
        )  # fmt: skip


def measure(part: Part) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    if not part.pretend and not torch.cuda.is_available():
        raise NotHere("torch finds no CUDA GPU")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(**(TINY if part.pretend else SMALL), tie_word_embeddings=True))
    for n in (2,) if part.pretend else NUMBERS:
        part.tried(f"{n} adapters", lambda n=n: compared(part, base, n))


if __name__ == "__main__":
    main(measure)
