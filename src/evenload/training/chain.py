"""``TrainingChain``: what an exact training was every so many steps, in a log, to be repeated and checked.

    step ──► step ──► ... ──► link: weights, optimizer, order of samples ──► log (rank 0)
                               └── the log has one of this step: held against it, and nothing is written

Repeating is training: whoever loads a checkpoint goes on from there, and compares with each link that the log
has. A training that goes on after a kill checks itself in the same way.
"""

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from evenload._arguments import instance_of, keywords, suggests_arguments, whole
from evenload._version import __version__
from evenload.errors import ConfigError, EvenloadError, FormatError, quoted
from evenload.training.chain_link import NO_ORDER, PARTS, ChainLink, changes, links_of, with_samples
from evenload.training.even_batches import EvenBatches
from evenload.training.passes.grain_gradient import add_tensor, digest_of, kernels, plain
from evenload.training.rank_group import agree

ANEW = "begin a chain in a folder of its own"


@dataclass(frozen=True, slots=True)
class Repeated:
    """What came of steps that were repeated, the same on every rank; its ``str`` is a sentence.

    start, stop  the steps after ``start`` up to ``stop``: of the first stretch that differs, else of all
    differs      what is another after them: place, order (of samples), weights, optimizer
    kernels      why bits may differ: another torch, device, level of processor, or other threads
    """

    start: int
    stop: int
    differs: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()

    @property
    def is_equal(self) -> bool:
        """Whether all came out as the chain says."""
        return not self.differs

    @property
    def is_judged(self) -> bool:
        """Whether it says something of the chain: other bits of other kernels do not, another order does."""
        return self.is_equal or not self.kernels or bool({"place", "order"} & {*self.differs})

    def __str__(self) -> str:
        steps = f"steps {self.start + 1} to {self.stop} came out"
        if self.is_equal:
            return f"equal: {steps} as the chain says"
        said, why = f"{steps} otherwise ({', '.join(self.differs)})", "; ".join(self.kernels)
        return (
            f"not equal: {said}" if self.is_judged else f"cannot be judged: {said}, on other kernels: {why}"
        )


class TrainingChain:
    """A chain of links, one every so many steps, that says what an exact training was and did.

    log        ``evenload.merkle.Log`` on rank 0, None elsewhere; to repeat steps, one that is only read
    even       the training's ``EvenBatches(exact=True)``; with it ``model`` and ``optimizer``, all of them at
               the place where the training goes on: load a checkpoint first
    optimizer  or whatever has a ``state_dict`` of tensors, numbers and texts
    every      steps from one link to the next
    state      what ``state_dict`` of the chain returned there; None at the first step

    Make it on every rank, and call ``step()`` after each step: a link is then on disk. Raises ConfigError,
    the same on every rank, for a log of something else or of another run, if links are missing, if ranks have
    different weights, and if these are not what a link of the same step says.
    """

    @suggests_arguments
    def __init__(
        self, log: Any, even: EvenBatches, model: Any, optimizer: Any, *,
        every: int = 100, state: Mapping[str, Any] | None = None,
    ):  # fmt: skip
        self._even = instance_of("even", even, EvenBatches, "the training's EvenBatches")
        self._log, self._model, self._optimizer = log, model, optimizer
        self._is_first = even.ranks.number == 0
        self._stops: list[int] = []  # of the log's links, on rank 0
        self._n_own, self._n_seen = 0, even.trained[0]

        def begin() -> tuple[bool, dict[str, Any]]:
            given = keywords("state", {"start": 0, "step": 0, "order": NO_ORDER} if state is None else state)
            self._step = whole("step of the state", given.get("step"), most=None)
            self._start = whole("start of the state", given.get("start"), most=self._step)
            self._order, self._every = str(given.get("order")), whole("every", every, least=1)
            self._run = facts_of_run(model, even)
            own = self._is_first and self._open()
            return True, {"state of the chain": [*self.state_dict().values()], "own": own}

        self._due = agree(even.ranks, begin)[1][0]
        if self._due == self._step and (found := self._link()).differs:
            raise ConfigError(
                f"this training is not the chain's at step {self._step} ({', '.join(found.differs)} differ)",
                hint=f"load the checkpoint that was made there, or {ANEW}",
            )

    def step(self) -> None:
        """Count a step, after the optimizer's; writes a link if one is due.

        Raises EvenloadError, the same on every rank, if a step is trained again and comes out otherwise.
        """
        if (found := self._advance()).differs:
            raise EvenloadError(f"trained again, and {found}", hint=ANEW)

    def repeat(
        self, loader: Iterable[Any], train_step: Callable[[Iterator[Any]], Any], until: int | None = None
    ) -> Repeated:
        """Train up to the link at step ``until`` (default: the last), held against every link on the way.

        train_step  trains a step of ``even.steps``: micro-batches, optimizer, schedule, but not ``step()``

        Every rank calls it, and the fleet may be another than that of the chain. Ends behind the first
        stretch that comes out otherwise. Raises ConfigError if the chain has no such link ahead.
        """
        first, ask = self._step, lambda: (True, {"own": self._is_first and self._link_ahead(until)})
        end = agree(self._even.ranks, ask)[1][0]
        while self._step < end:
            before = self._step
            for one in self._even.steps(loader, self._model):
                train_step(one)
                if (found := self._advance()).differs:
                    return found
                if self._step == end:
                    break
            if self._step == before:
                raise ConfigError("the loader has no batch left", hint="give one for many epochs")
        return Repeated(first, self._step)

    def state_dict(self) -> dict[str, Any]:
        """Return how far the chain is, for a checkpoint beside the model's; JSON can hold it."""
        return {"start": self._start, "step": self._step, "order": self._order}

    def _link_ahead(self, until: int | None) -> int:
        """Return the step of the link to repeat up to, on rank 0."""
        ahead = self._stops[bisect_right(self._stops, self._step) :]
        if not ahead or until not in (None, *ahead):
            listed = ", ".join(map(str, ahead[:8])) or "none, so load an earlier checkpoint"
            raise ConfigError(
                f"until={quoted(until)} is no link ahead of step {self._step}", hint=f"there are {listed}"
            )
        return ahead[-1] if until is None else int(until)

    def _advance(self) -> Repeated:
        """Take in the step that was trained; returns what came of comparing, if a link was due."""
        n_trained, samples, n_own = self._even.trained
        if n_trained != self._n_seen + 1:
            raise ConfigError(
                f"{n_trained - self._n_seen} steps were trained since the chain counted one",
                hint="call step() of the chain once after each step",
            )
        self._n_seen, self._step, self._n_own = n_trained, self._step + 1, self._n_own + n_own
        self._order = with_samples(self._order, samples)
        return self._link() if self._step == self._due else Repeated(self._start, self._step)

    def _link(self) -> Repeated:
        """Compare this step with its link, or write that if there is none."""
        digests = self._order, digest_of(self._model), digest_of_state(self._optimizer.state_dict())
        facts = {"evenload": __version__, **kernels(next(self._model.parameters()).device)}
        here = ChainLink(self._start, self._step, self._even.place, *digests, (), self._run, facts)
        at = bisect_left(self._stops, self._step)
        there = ChainLink.parse(self._log[at]) if self._step in self._stops[at : at + 1] else None

        def say() -> tuple[bool, dict[str, Any]]:
            own: dict[str, Any] = {"samples": self._n_own, "due": self._next(), "differs": (), "kernels": ()}
            if there is not None:
                own |= {"differs": there.differs_from(here), "kernels": changes(there.kernels, facts)}
            return True, {**{name: getattr(here, name) for name in PARTS}, "own": own}

        own = agree(self._even.ranks, say)[1]
        if self._is_first and there is None:
            link = replace(here, shares=tuple(one["samples"] for one in own))
            self._log.append([link.behind(self._log[len(self._log) - 1] if len(self._log) else None).leaf()])
            self._stops.append(self._step)
        self._due, self._start, self._order, self._n_own = own[0]["due"], self._step, NO_ORDER, 0
        return Repeated(here.start, here.stop, *(tuple(own[0][name]) for name in ("differs", "kernels")))

    def _open(self) -> int:
        """Check the links that are there, on rank 0; returns the step of the one to begin with."""
        if not hasattr(self._log, "append"):
            hint = "give rank 0 an evenload.merkle.Log(folder, origin=...)"
            raise ConfigError(f"the log is {quoted(self._log)}", hint=hint)
        try:
            for link in links_of(self._log[k] for k in range(len(self._log))):
                self._stops.append(link.stop)
                if other := changes(link.run, self._run):
                    raise ConfigError(f"the log has the chain of another run: {other[0]}", hint=ANEW)
        except FormatError as error:  # only of a ConfigError all ranks hear
            raise ConfigError(error.message, hint=error.hint) from error
        before = self._stops[: bisect_right(self._stops, self._step)]
        if self._stops and self._start not in before[-1:]:
            raise ConfigError(
                f"this training goes on at step {self._step}, behind a link at {self._start}, and the chain"
                f" has none there in its steps {self._stops[0]} to {self._stops[-1]}",
                hint=f"give the state= of the same checkpoint, or {ANEW}",
            )
        return self._next() if before and self._start < self._step else self._step

    def _next(self) -> int:
        """Return the step of the next link: of one that is there, or of a new one."""
        ahead = bisect_right(self._stops, self._step)
        new = (self._step // self._every + 1) * self._every
        return self._stops[ahead] if ahead < len(self._stops) else new


def facts_of_run(model: Any, even: EvenBatches) -> dict[str, Any]:
    """Return what makes another training of it: tensors of the model, and all settings of the batches."""
    if not even.settings["exact"]:
        raise ConfigError(
            "EvenBatches without exact=True: no other ranks come to the same bits", hint="give it"
        )
    tensors = plain(model).state_dict().items()
    shapes = [(name, str(getattr(one, "dtype", "")), [*getattr(one, "shape", ())]) for name, one in tensors]
    kind = hashlib.sha256(repr(shapes).encode()).hexdigest()[:16]
    return {"model": f"{len(shapes)} tensors, {kind}", **even.settings}


def digest_of_state(state: Any) -> str:
    """Return the SHA-256 of what a ``state_dict`` returns: tensors, numbers and texts in dicts and lists.

    Raises ConfigError for anything else.
    """
    found = hashlib.sha256()
    _add(found, "", state)
    return found.hexdigest()


def _add(found: Any, name: str, value: Any) -> None:
    import torch

    if isinstance(value, torch.Tensor):
        add_tensor(found, name, value)
    elif isinstance(value, Mapping | list | tuple):
        parts = value.items() if isinstance(value, Mapping) else enumerate(value)
        listed = sorted(((repr(key), one) for key, one in parts), key=lambda pair: pair[0])
        found.update(f"{name} {'keys' if isinstance(value, Mapping) else 'parts'} {len(listed)}\n".encode())
        for key, one in listed:
            _add(found, f"{name}/{key}", one)
    elif value is None or isinstance(value, bool | int | float | str):
        found.update((name + " " + repr(value) + "\n").encode())
    else:
        raise ConfigError(
            f"the optimizer's state has a {type(value).__name__} at {quoted(name)}",
            hint="give an object whose state_dict() has tensors, numbers and texts",
        )
