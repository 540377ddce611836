"""The clients that part ``clients`` and its processes train, and how far two trainings are apart."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

KEPT = 20  # clients whose states are compared with serial training


@dataclass(frozen=True)
class Case:
    """A model and clients of it.

    clients  n -> n pairs of rows and labels, on the host
    steps    of a client in a round, each of ``batch`` rows
    """

    name: str
    model: Callable[[], Any]
    clients: Callable[[int], list[tuple[Any, Any]]]
    steps: int
    batch: int

    @property
    def recipe(self) -> Any:
        from clients_models import LR

        from evenload.clients import SGD, Recipe

        return Recipe(optimizer=SGD(LR), batch_size=self.batch, epochs=1)


def cases(*, pretend: bool) -> dict[str, Case]:
    """By name, the smallest first; with a few rows each where this only pretends."""
    import clients_cifar
    import clients_models

    found = {
        name: Case(
            name, clients_models.MODELS[name], lambda n, name=name: clients_models.clients(name, n),
            clients_models.STEPS, clients_models.BATCH,
        )
        for name in ("64-32-10", "LeNet-5", "transformer")
    }  # fmt: skip
    found["CIFAR"] = Case(
        "CIFAR", _without_dropout, clients_cifar.cohort, clients_cifar.STEPS, clients_cifar.BATCH
    )
    return {name: _tiny(case) for name, case in found.items()} if pretend else found


def _without_dropout() -> Any:
    """The network without dropout, whose numbers come from the host in each step: no graph holds that."""
    from clients_cifar import Cifar
    from torch import nn

    return nn.Sequential(*(layer for layer in Cifar() if not isinstance(layer, nn.Dropout)))


def _tiny(case: Case) -> Case:
    def clients(n: int) -> list[tuple[Any, Any]]:
        return [(x[:8], y[:8]) for x, y in case.clients(n)]

    return Case(case.name, case.model, clients, steps=2, batch=4)


def states_of(run: Any) -> dict[int, dict[str, Any]]:
    """Client -> its state on the host, of the first clients."""
    return {
        result.client: {name: t.detach().cpu().clone() for name, t in result.state.items()}
        for result in run
        if result.client < KEPT
    }


def distance(a: Mapping[int, Mapping[str, Any]], b: Mapping[int, Mapping[str, Any]]) -> float:
    """The largest difference of a number of a client that is in both."""
    both = a.keys() & b.keys()
    if not both:
        raise ValueError("no client is in both trainings")
    return max(
        float((a[i][name].double() - t.double()).abs().max()) for i in both for name, t in b[i].items()
    )


def plain(text: str, *, pretend: bool) -> str:
    """The strategy ``text``, with threads in the place of CUDA streams where this only pretends."""
    return text.replace("streams", "threads") if pretend else text


def comparable() -> None:
    """Have convolutions in full float32, as TF32 would be most of a distance; and one thread on the CPU."""
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(1)
