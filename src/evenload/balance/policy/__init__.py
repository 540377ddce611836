"""Policies by which items are dealt: immutable values with ``init`` and ``step``, also to be had by name."""

from collections.abc import Callable

from evenload.balance.policy.base import Ask, Copy, Hold, Policy, Take
from evenload.balance.policy.fixed import Factoring, Guided, Pull, Static
from evenload.balance.policy.measured import Measured
from evenload.errors import ConfigError, UnknownName, quoted

__all__ = [
    "POLICIES",
    "Ask",
    "Copy",
    "Factoring",
    "Guided",
    "Hold",
    "Measured",
    "Policy",
    "Pull",
    "Static",
    "Take",
    "policy_from_name",
]

_MAKERS: dict[str, Callable[[], Policy]] = {
    "measured": Measured,
    "pull": Pull,
    "guided": Guided,
    "factoring": Factoring,
    "static": Static,
}
POLICIES = tuple(_MAKERS)


def policy_from_name(name: "str | Policy") -> Policy:
    """The policy called ``name``: "measured", "pull:16", "factoring:weighted", "static:proportional".

    After the colon: chunk size (pull, guided), "weighted" (factoring), a partition (static), eps (measured).
    A policy is returned as it is. Raises UnknownName on a typo, ConfigError on an argument that does not fit
    or on what is neither a name nor a policy.
    """
    if not isinstance(name, str):
        if isinstance(name, type) or not (
            callable(getattr(name, "init", None)) and callable(getattr(name, "step", None))
        ):
            raise ConfigError(
                f"policy {quoted(name)} is neither a name nor a policy",
                hint=f"use one of {', '.join(POLICIES)}, or an object such as Pull(4)",
            )
        return name
    kind, colon, argument = name.strip().lower().partition(":")
    if kind not in POLICIES:
        raise UnknownName("policy", name, POLICIES)
    if not colon:
        return _MAKERS[kind]()
    if kind in ("pull", "guided", "measured"):
        try:
            number = float(argument) if kind == "measured" else int(argument)
        except ValueError:
            raise ConfigError(
                f"policy {quoted(name)}: {quoted(argument)} is not a number", hint=f"write {kind}:<number>"
            ) from None
        if kind == "measured":
            return Measured(eps=number)
        return (Pull if kind == "pull" else Guided)(int(number))
    if kind == "factoring":
        if argument != "weighted":
            raise UnknownName("factoring variant", argument, ["weighted"])
        return Factoring(weighted=True)
    return Static(argument)
