"""Part ``adapters``: many LoRAs of one frozen transformer of a billion random weights, fused beside in turn.

A step is timed by the clock, until the GPU is done. The distance is the largest difference of a weight of an
adapter from training in turn, beside the way that weights go. The last rows are the public call with all that
belongs to it, on a small base, as it asks the model on the CPU first.
"""

import time
from collections.abc import Callable
from typing import Any

from client_cases import plain
from cuda_timing import median_s
from part import NotHere, Part, main

NUMBERS = (4, 16, 32, 1)  # adapters
RANK, LR = 16, 2.0**-4  # exact in every kind of number
STEPS, ROWS, TOKENS = 2, 4, 64  # of an adapter, a step, a row
REPEATS = 3
BILLION = {
    "vocab_size": 32000, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 8192,
}  # fmt: skip
SMALL = BILLION | {"vocab_size": 4096, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8}
SMALL |= {"intermediate_size": 1024}
TINY = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 64,
}  # fmt: skip


def base_of(sizes: dict[str, int], device: str, dtype: Any) -> Any:
    """A Llama of transformers with random weights, made on the device."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True))
    finally:
        torch.set_default_dtype(before)


class Adapters:
    """Adapters of one base on the device, trained in turn or fused.

    model   the frozen base with places for one adapter
    starts  what each adapter starts from;  ids [adapters, rows, tokens]
    """

    def __init__(self, part: Part, model: Any, n: int) -> None:
        import torch

        from evenload.clients.lora import _start

        self.part, self.model, self.n = part, model, n
        self.own = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.starts = [_start(model, form_of_adapters(), 0, i) for i in range(n)]
        chance = torch.Generator().manual_seed(1)
        n_words, tokens = model.config.vocab_size, 8 if part.pretend else TOKENS
        self.ids = torch.randint(0, n_words, (n, ROWS, tokens), generator=chance).to(part.device)

    def in_turn(self) -> list[dict[str, Any]]:
        """Each adapter by plain torch, one after the other; their ends."""
        import torch
        from clients_adapters import objective

        ended = []
        for start, ids in zip(self.starts, self.ids, strict=True):
            for name, p in self.own.items():
                p.data.copy_(start[name])
            optimizer = torch.optim.SGD(self.own.values(), lr=LR)
            for _ in range(STEPS):
                optimizer.zero_grad(set_to_none=True)
                objective(self.model, {"ids": ids}).mean().backward()
                optimizer.step()
            ended.append({name: p.detach().clone() for name, p in self.own.items()})
        return ended


class FusedAdapters:
    """The stacked state of all adapters, and evenload's fused step on it."""

    def __init__(self, adapters: Adapters) -> None:
        import torch

        from evenload.clients.step.fuse import StackedClients, StackedStep, StepArguments

        model, n, place = adapters.model, adapters.n, adapters.part.device
        self._starts = {name: torch.stack([s[name] for s in adapters.starts]) for name in adapters.own}
        frozen = {name: t.detach() for name, t in own_tensors(model).items() if name not in adapters.own}
        recipe, form, is_inside = step_of(tuple(adapters.own), tuple(frozen))
        self._step = StackedStep(model, recipe, form, is_inside)
        alive = torch.ones(n, dtype=torch.bool, device=place)
        params = {name: t.clone() for name, t in self._starts.items()}
        self._clients = StackedClients(params, {}, {}, frozen, {}, {}, alive)
        dtype = next(iter(params.values())).dtype
        self._inputs = StepArguments(
            torch.zeros(n, dtype=torch.int64, device=place), {"ids": adapters.ids},
            torch.zeros(n, ROWS, 0, device=place),
            torch.full((n, ROWS), 1 / ROWS, dtype=dtype, device=place),
            {"minus_lr": torch.full((n,), -LR, dtype=dtype, device=place)},
        )  # fmt: skip

    def train(self) -> None:
        for name, t in self._starts.items():
            self._clients.params[name].copy_(t)
        for _ in range(STEPS):
            self._step(self._clients, self._inputs)

    def ended(self) -> list[dict[str, Any]]:
        params = self._clients.params
        return [{name: t[i].clone() for name, t in params.items()} for i in range(len(self._clients.alive))]


def form_of_adapters() -> Any:
    from evenload.clients import LoRA

    return LoRA(rank=RANK, targets=("*q_proj", "*v_proj"))


def own_tensors(model: Any) -> dict[str, Any]:
    """The tensors of a state dict by their own names: tied ones once."""
    named = {id(t): name for name, t in [*model.named_parameters(), *model.named_buffers()]}
    return {named[id(t)]: t for t in model.state_dict(keep_vars=True).values()}


def step_of(trained: tuple[str, ...], frozen: tuple[str, ...]) -> tuple[Any, Any, bool]:
    """Recipe and form of the fused step, and whether gradients are taken inside of vmap.

    Traits are those of a tiny model of the same kind: asking a large one would train it on the CPU.
    """
    import torch
    from clients_adapters import objective

    from evenload.clients import SGD, Recipe
    from evenload.clients.load.datasets import as_rows
    from evenload.clients.lora import with_adapters
    from evenload.clients.step.fuse import StepForm
    from evenload.clients.step.model_traits import find_traits
    from evenload.clients.values.batches import plan_batches
    from evenload.clients.values.task import ClientTask

    recipe = Recipe(optimizer=SGD(LR), objective=objective, batch_size=ROWS, steps=STEPS)
    tiny = with_adapters(base_of(TINY, "cpu", torch.float32), form_of_adapters())
    rows = as_rows({"ids": torch.zeros(ROWS, 8, dtype=torch.int64)}, torch.float32)
    (batches,) = plan_batches([ROWS], [0], [recipe], 0)
    traits = find_traits(tiny, ClientTask(0, recipe, rows, ROWS, batches, tiny.state_dict()))
    if traits.refusal is not None or traits.changing:
        raise ValueError(f"such a model is not fused: {traits.refusal}, {traits.changing}")
    optimizer = SGD.form([recipe.optimizer])
    form = StepForm(trained, frozen, (), optimizer, shares_frozen=True, replaces=traits.replaces)
    return recipe, form, not traits.has_plain_gradients


def apart(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> float:
    """The largest difference of a weight."""
    return max(
        float((x[n].double() - y[n].double()).abs().max()) for x, y in zip(a, b, strict=True) for n in y
    )


def peak_bytes(part: Part, work: Callable[[], Any]) -> int:
    """Bytes that torch held at most during ``work`` beyond those before; 0 where this only pretends."""
    if part.pretend:
        work()
        return 0
    import torch

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def compared(part: Part, model: Any, n: int) -> None:
    """n adapters in turn and fused: milliseconds of a step of one, memory beyond the base, distance."""
    adapters = Adapters(part, model, n)
    truth = adapters.in_turn()
    in_turn_bytes = peak_bytes(part, adapters.in_turn)
    steps = n * STEPS
    in_turn_ms = 1e3 * median_s(part, adapters.in_turn, REPEATS) / steps
    n_weights = sum(t.numel() for t in own_tensors(model).values())
    base_bytes = sum(t.numel() * t.element_size() for t in own_tensors(model).values())
    name, flop = (
        f"{n} adapters, {n_weights / 1e6:.0f} M, {model.dtype}",
        4 * n_weights * adapters.ids[0].numel(),
    )
    way = apart(truth, adapters.starts)
    part.row(
        f"{name}, in turn", adapter_step_ms=in_turn_ms, tflops=flop / in_turn_ms * 1e-9, way=way,
        beyond_base_bytes=in_turn_bytes, base_bytes=base_bytes,
    )  # fmt: skip
    fused = FusedAdapters(adapters)
    fused_bytes = peak_bytes(part, fused.train)
    found = apart(truth, fused.ended())
    ms = 1e3 * median_s(part, fused.train, REPEATS) / steps
    part.row(
        f"{name}, fused", adapter_step_ms=ms, x_in_turn=in_turn_ms / ms, tflops=flop / ms * 1e-9,
        distance=found, way=way, beyond_base_bytes=fused_bytes,
    )  # fmt: skip


def public_call(part: Part) -> None:
    """``evenload.clients.adapters`` from datasets to trained adapters, fused and in turn."""
    import torch
    from clients_adapters import objective

    from evenload.clients import SGD, Recipe, adapters

    sizes, n = (TINY, 2) if part.pretend else (SMALL, 16)
    base = base_of(sizes, "cpu", torch.float32)
    recipe = Recipe(optimizer=SGD(LR), objective=objective, batch_size=ROWS, steps=STEPS)
    chance = torch.Generator().manual_seed(1)
    tokens = 8 if part.pretend else TOKENS
    data = [
        {"ids": torch.randint(0, sizes["vocab_size"], (ROWS, tokens), generator=chance)} for _ in range(n)
    ]
    found = {}
    for text in ("streams*1/eager", f"streams*1/fused:{n}"):
        began = time.perf_counter()
        found[text] = adapters(
            base, data, form_of_adapters(), recipe=recipe, strategy=plain(text, pretend=part.pretend),
            devices=part.device,
        )  # fmt: skip
        seconds = time.perf_counter() - began
        (plan,) = found[text].plans.values()
        weights = [dict(one.weights) for one in found[text]]
        first = [dict(one.weights) for one in found["streams*1/eager"]]
        part.row(
            f"{n} adapters by the public call, {text}", whole_s=seconds, ran=str(plan.strategy),
            distance=apart(first, weights), reasons=str(dict(plan.reasons))[:300],
        )  # fmt: skip


def measure(part: Part) -> None:
    import torch

    if not part.pretend and not torch.cuda.is_available():
        raise NotHere("torch finds no CUDA GPU")
    from evenload.clients.lora import with_adapters

    torch.set_num_threads(1)
    sizes, dtype = (TINY, torch.float32) if part.pretend else (BILLION, torch.bfloat16)
    model = with_adapters(base_of(sizes, part.device, dtype), form_of_adapters()).train()
    for n in (2,) if part.pretend else NUMBERS:
        part.tried(f"{n} adapters", lambda n=n: compared(part, model, n))
        if not part.pretend:
            torch.cuda.empty_cache()  # the next may need all that this one's streams and graphs have kept
    part.tried("public call", lambda: public_call(part))
    if not part.pretend:
        part.tried("4 adapters in float32", lambda: compared(part, model.float(), 4))


if __name__ == "__main__":
    main(measure)
