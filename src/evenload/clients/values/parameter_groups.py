"""Parameter groups: options of an optimiser that differ by the parameter's name."""

import fnmatch
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evenload.clients.values.optimizer import build_groups, values_of
from evenload.errors import ConfigError, quoted

Tensors = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ParameterGroups:
    """An optimiser with other options for parameters whose names match a pattern; the first match holds.

        ParameterGroups(SGD(lr=0.1), {"*.bias": {"weight_decay": 0.0}, "head.*": {"lr": 1.0}})

    base     the optimiser of all other parameters
    options  pattern (of fnmatch) -> fields of ``base`` with other values
    """

    base: Any
    options: Any

    def __post_init__(self) -> None:
        if isinstance(self.base, ParameterGroups) or not hasattr(self.base, "weight_decay"):
            raise ConfigError(
                f"ParameterGroups of a {type(self.base).__name__}",
                hint="use SGD(...), Adam(...), RMSprop(...)",
            )
        pairs = self.options.items() if isinstance(self.options, Mapping) else self.options
        try:
            given = {pattern: dict(changes) for pattern, changes in pairs}
        except (TypeError, ValueError):
            given = {None: {}}
        if not all(isinstance(pattern, str) for pattern in given):
            raise ConfigError(
                f"ParameterGroups(options={quoted(self.options)})", hint='use {"*.bias": {"lr": 0.1}}'
            )
        known = values_of(self.base)
        for pattern, changes in given.items():
            unknown = [name for name in changes if name not in known]
            if unknown:
                raise ConfigError(
                    f"group {quoted(pattern)} sets {quoted(unknown[0])}",
                    hint=f"{type(self.base).__name__} has {', '.join(known)}",
                )
        object.__setattr__(
            self,
            "options",
            tuple((pattern, tuple(dict(changes).items())) for pattern, changes in given.items()),
        )
        codes = {one.code() for one in self.members}
        if len(codes) > 1:
            raise ConfigError(
                "groups differ in what decides the code of a step", hint="nesterov, centered, ..."
            )

    @property
    def lr(self) -> float:
        return self.base.lr

    @property
    def members(self) -> tuple[Any, ...]:
        """The optimiser of each pattern, then that of all others."""
        return *(replace(self.base, **dict(changes)) for _, changes in self.options), self.base

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(pattern for pattern, _ in self.options)

    def build(self, named: Mapping[str, Any]) -> Any:
        """Raises ConfigError for a pattern that no parameter's name matches."""
        for pattern in self.patterns:
            if not fnmatch.filter(named, pattern):
                raise ConfigError(
                    f"no parameter is named like {quoted(pattern)}",
                    hint=f"names: {', '.join(list(named)[:8])}",
                )
        groups = [
            ([named[name] for name in names], values_of(member))
            for names, member in zip(_split(tuple(named), self.patterns), self.members, strict=True)
            if names
        ]
        return build_groups(type(self.base).__name__, groups)

    def code(self) -> tuple:
        """The parts that clients of one fused step must share."""
        return type(self), self.base.code(), self.patterns

    @classmethod
    def form(cls, all_of_them: Sequence["ParameterGroups"]) -> tuple:
        first, kind = all_of_them[0], type(all_of_them[0].base)
        columns = zip(*(one.members for one in all_of_them), strict=True)
        return ("ParameterGroups", kind, first.patterns, tuple(kind.form(list(c)) for c in columns))

    @staticmethod
    def state_names(form: tuple) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for own in form[3] for name in form[1].state_names(own)))

    @staticmethod
    def scalars(
        form: tuple, opts: Sequence["ParameterGroups"], factor: np.ndarray, t: np.ndarray
    ) -> dict[str, np.ndarray]:
        columns = list(zip(*(one.members for one in opts), strict=True))
        return {
            f"{at}.{name}": values
            for at, (own, column) in enumerate(zip(form[3], columns, strict=True))
            for name, values in form[1].scalars(own, column, factor, t).items()
        }

    @staticmethod
    def update(
        form: tuple, params: Tensors, grads: Tensors, state: Mapping[str, Tensors], s: Tensors
    ) -> None:
        """One step in place; every tensor [K, ...], every number [K]."""
        _, kind, patterns, forms = form
        for at, (own, names) in enumerate(zip(forms, _split(tuple(params), patterns), strict=True)):
            numbers = {n.partition(".")[2]: v for n, v in s.items() if n.startswith(f"{at}.")}
            kind.update(own, {name: params[name] for name in names}, grads, state, numbers)


@functools.lru_cache(maxsize=256)
def _split(names: tuple[str, ...], patterns: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """The names of each pattern's group, then all others."""
    found: list[list[str]] = [[] for _ in (*patterns, "*")]
    for name in names:
        at = next(
            (i for i, pattern in enumerate(patterns) if fnmatch.fnmatchcase(name, pattern)), len(patterns)
        )
        found[at].append(name)
    return tuple(map(tuple, found))
