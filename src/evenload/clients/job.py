"""A federated job as a document: which functions make the model and the clients, and how they are trained.

model: task.py:make_model          rounds: 20
clients: task.py:make_clients      cohort: 10
test: task.py:make_test            recipe: {optimizer: {name: SGD, lr: 0.1}, batch_size: 10, epochs: 1}
                                   algorithm: {name: FedProx, mu: 0.1}
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from evenload.clients.algorithms.cohort import Cohort
from evenload.clients.values.adaptive_optimizers import (
    Adadelta,
    Adagrad,
    Adamax,
    NAdam,
    RAdam,
    RMSprop,
    Rprop,
)
from evenload.clients.values.optimizer import SGD, Adam, AdamW
from evenload.clients.values.recipe import (
    Constant,
    Cosine,
    CrossEntropy,
    EarlyStop,
    Exponential,
    Recipe,
    StepDecay,
)
from evenload.errors import ConfigError, SpecError, UnknownName, quoted

OPTIMIZERS = {
    kind.__name__: kind
    for kind in (SGD, Adam, AdamW, Adadelta, Adagrad, Adamax, NAdam, RAdam, RMSprop, Rprop)
}
SCHEDULES = {"Constant": Constant, "Cosine": Cosine, "Exponential": Exponential, "StepDecay": StepDecay}
# What else these words are called at the top of a file: the part that has it.
ELSEWHERE = {
    **dict.fromkeys(
        ("workers", "max_workers", "n_workers"), "strategy: it has them, as in threads*4/fused:16"
    ),
    **dict.fromkeys(
        ("epochs", "steps", "batch_size", "optimizer", "loss", "schedule", "prox", "clip"), "recipe"
    ),
}
KEYS = ("model", "clients", "test", "recipe", "algorithm", "rounds", "cohort", "strategy", "seed")


@dataclass(frozen=True, slots=True)
class FederatedJob:
    """A federated job as read from its file.

    model, clients, test  "file.py:name" of functions without arguments
    """

    model: str
    clients: str
    recipe: Recipe
    algorithm: Any
    rounds: int
    test: str | None = None
    cohort: Cohort = field(default_factory=Cohort)
    strategy: str = "auto"
    seed: int = 0


def read_job(document: Any, source: str) -> FederatedJob:
    """The job in a parsed document. Raises SpecError with every fault and its path."""
    if not isinstance(document, Mapping):
        raise SpecError(source, [("(file)", "is not a mapping of keys to values")])
    faults = [(str(key), _not_a_key(key)) for key in document if key not in KEYS]
    faults += [(key, "is missing") for key in ("model", "clients", "rounds") if key not in document]
    for key, kind in (
        ("model", str),
        ("clients", str),
        ("test", str),
        ("strategy", str),
        ("rounds", int),
        ("seed", int),
    ):
        if key in document and type(document[key]) is not kind:
            faults.append(
                (key, f"is {quoted(document[key])}, not {'a text' if kind is str else 'a whole number'}")
            )

    def part(key: str, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except (ConfigError, TypeError, ValueError) as error:
            hint = f": {error.hint}" if isinstance(error, UnknownName) else ""
            faults.append((key, getattr(error, "message", str(error)) + hint))
            return None

    recipe = _recipe(document.get("recipe", {}), part)
    algorithm = part("algorithm", lambda: _algorithm(document.get("algorithm", {"name": "FedAvg"})))
    cohort = part("cohort", lambda: _cohort(document.get("cohort")))
    if faults:
        raise SpecError(source, faults)
    given = {
        key: document[key]
        for key in ("model", "clients", "test", "rounds", "strategy", "seed")
        if key in document
    }
    return FederatedJob(recipe=recipe, algorithm=algorithm, cohort=cohort, **given)


def _not_a_key(key: Any) -> str:
    """What is wrong with a key at the top of a file that is none."""
    place = ELSEWHERE.get(str(key).replace("-", "_"))
    return f"is not a key here, but of {place}" if place else f"is not a key; keys: {', '.join(KEYS)}"


def _recipe(entry: Any, part: Callable[[str, Callable[[], Any]], Any]) -> Any:
    """The recipe; ``part`` makes one value, or notes what is wrong with it. None if anything is."""
    if not isinstance(entry, Mapping):
        return part("recipe", lambda: _mapping(entry, []))
    names = [f.name for f in fields(Recipe) if f.name not in ("step", "augment", "objective")]
    known = {"optimizer": OPTIMIZERS, "schedule": SCHEDULES, "loss": {"cross_entropy": CrossEntropy}}
    made: dict[str, Any] = {}
    for key, value in entry.items():

        def make(key: str = key, value: Any = value) -> Any:
            _mapping({key: value}, names)
            is_value = key in known and (key != "loss" or isinstance(value, Mapping))
            value = _named(key, value, known[key]) if is_value else value
            value = tuple(value) if key == "metrics" else value
            if key == "stop" and isinstance(value, Mapping):
                _mapping(value, [f.name for f in fields(EarlyStop)])
                value = EarlyStop(**value)
            Recipe(**{key: value})  # pyrefly: ignore  # raises for what is wrong with this value alone
            return value

        made[key] = part(f"recipe.{key}", make)
    if any(value is None and entry[key] is not None for key, value in made.items()):
        return None
    return part("recipe", lambda: Recipe(**made))


def _algorithm(entry: Any) -> Any:
    from evenload.clients import algorithms

    others = ("Algorithm", "Orders", "Server")
    return _named(
        "algorithm", entry, {n: getattr(algorithms, n) for n in algorithms.__all__ if n not in others}
    )


def _cohort(entry: Any) -> Cohort:
    if isinstance(entry, Mapping):
        _mapping(entry, [f.name for f in fields(Cohort)])
        return Cohort(**entry)
    return Cohort(size=entry)


def _named(what: str, entry: Any, known: Mapping[str, Any]) -> Any:
    """An object of the class called ``name``; the entry's other keys are its arguments."""
    entry = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(entry, Mapping) or "name" not in entry:
        raise ConfigError(f"{what} has no name; names: {', '.join(known)}")
    if entry["name"] not in known:
        raise UnknownName(what, str(entry["name"]), known)
    kind, arguments = known[entry["name"]], {k: v for k, v in entry.items() if k != "name"}
    _mapping(arguments, list(inspect.signature(kind).parameters))
    return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in arguments.items()})


def _mapping(entry: Any, names: list[str]) -> None:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{quoted(entry)} is not a mapping")
    for key in entry:
        if key not in names:
            raise UnknownName("key", str(key), names)
