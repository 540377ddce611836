"""Many LoRAs of one frozen transformer: fused beside one after another, and where that stops paying.

    python benchmarks/clients_adapters.py [--ranks 4 16 64] [--adapters 2 8 32] [--tokens 32 256]

A small Llama of transformers with random weights. Milliseconds per adapter and step by this thread's CPU
time, the least of interleaved samples, each of a whole training. "times" is the median of the ratios of
neighbouring samples, "least" and "most" of them beside it. "from": the least number of adapters at
which fusing was faster, for each rank and length of texts. The whole takes about two minutes, a third of
that with two ranks and one repeat.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from record import record
from transformers import LlamaConfig, LlamaForCausalLM

from evenload.clients import SGD, LoRA, Recipe, Trainer
from evenload.clients.lora import _start, with_adapters
from evenload.clients.values.task import TrainOptions

STEPS, BATCH, WORDS = 2, 4, 256


def objective(model, batch):
    logits = model(input_ids=batch["ids"], use_cache=False).logits[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), batch["ids"][:, 1:], reduction="none").mean(1)


def measure(base: LlamaForCausalLM, rank: int, n: int, tokens: int, repeats: int) -> dict:
    """CPU milliseconds per adapter and step, serially and fused."""
    form = LoRA(rank=rank, targets=("*q_proj", "*v_proj"))
    recipe = Recipe(optimizer=SGD(0.01), objective=objective, batch_size=BATCH, steps=STEPS)
    data = [{"ids": torch.randint(0, WORDS, (BATCH, tokens))} for _ in range(n)]
    model = with_adapters(base, form)
    trainers = {name: Trainer(model, strategy=name) for name in ("serial", f"fused:{n}")}
    samples: dict[str, list[float]] = {name: [] for name in trainers}
    for turn in range(repeats + 1):  # the first is not measured
        for name, trainer in trainers.items():
            start = [{**trainer.start, **_start(model, form, 0, i)} for i in range(n)]
            began = time.thread_time()
            run = trainer.train_with(data, recipe, TrainOptions(start=start))
            spent = (time.thread_time() - began) * 1e3 / (n * STEPS)
            assert (run.plan.strategy.inner == "fused") == (name != "serial"), run.plan.explain()
            if turn:
                samples[name].append(spent)
    serial, fused = samples.values()
    times = [a / b for a, b in zip(serial, fused, strict=True)]
    return {
        "serial, ms": min(serial),
        "fused, ms": min(fused),
        "times": statistics.median(times),
        "least": min(times),
        "most": max(times),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--adapters", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 256])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 2 * asked.hidden}
    config = LlamaConfig(vocab_size=WORDS, hidden_size=asked.hidden, num_key_value_heads=4, **sizes)
    base, rows = LlamaForCausalLM(config), []
    for tokens in asked.tokens:
        for rank in asked.ranks:
            for n in asked.adapters:
                found = measure(base, rank, n, tokens, asked.repeats)
                rows.append({"tokens": tokens, "rank": rank, "adapters": n, **found})
                print(rows[-1], flush=True)
            of_this = [row for row in rows if (row["tokens"], row["rank"]) == (tokens, rank)]
            first = next((row["adapters"] for row in of_this if row["times"] > 1), None)
            for row in of_this:
                row["from"] = first
    record("clients_adapters", rows)


if __name__ == "__main__":
    main()
