"""Verification of Groth16 proofs: with the compiled pairing where the extra is installed, else in Python.

What a stranger hands in is first read into plain integers (``_plain_public``, ``_plain_proof``), and only
these are computed with. What cannot be read is not valid, and why it cannot is the reason that is given.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeVar, overload

from evenload._optional import is_installed
from evenload.errors import FormatError, quoted
from evenload.gpu.field import FQ, FR
from evenload.zk import plain_groth16
from evenload.zk.bn254 import plain_pairing
from evenload.zk.bn254.plain_curve import G1, G2
from evenload.zk.groth16 import Proof, VerificationKey, decimal

Read = TypeVar("Read")
AT_ONCE = 256  # their lines take 3 MB
HOW_TO_WRITE = "write an int, or a decimal string as snarkjs does"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer to a verification: true where the proof is valid, else ``why_not`` is the reason."""

    why_not: str | None

    def __bool__(self) -> bool:
        return self.why_not is None


@overload
def verify(
    key: VerificationKey, public: Sequence[int | str], proof: Proof, *, explain: Literal[False] = False
) -> bool: ...
@overload
def verify(
    key: VerificationKey, public: Sequence[int | str], proof: Proof, *, explain: Literal[True]
) -> Verdict: ...
def verify(
    key: VerificationKey, public: Sequence[int | str], proof: Proof, *, explain: bool = False
) -> bool | Verdict:
    """Whether ``proof`` shows the statement with these public inputs. Never raises for a bad proof or input.

    public   a list or tuple of integers below r: each an int, or a decimal string as snarkjs writes it.
             Everything else (bool, float, None, NumPy's integers, ...) is False
    explain  return a ``Verdict`` instead of a bool: its truth is the answer, its ``why_not`` the reason
    Raises FormatError for a bad key. For many proofs under one key, keep a ``Verifier``.
    """
    verdict = Verdict(Verifier(key).why_not(public, proof))
    return verdict if explain else bool(verdict)


@overload
def verify_many(
    key: VerificationKey,
    statements: Sequence[tuple[Sequence[int | str], Proof]],
    *,
    explain: Literal[False] = False,
) -> list[bool]: ...
@overload
def verify_many(
    key: VerificationKey, statements: Sequence[tuple[Sequence[int | str], Proof]], *, explain: Literal[True]
) -> list[Verdict]: ...
def verify_many(
    key: VerificationKey, statements: Sequence[tuple[Sequence[int | str], Proof]], *, explain: bool = False
) -> list[bool] | list[Verdict]:
    """For each of many (public inputs, proof) under one key, what ``verify`` says; several times as fast.

    Raises FormatError for a bad key.
    """
    verdicts = [Verdict(why_not) for why_not in Verifier(key).why_not_each(statements)]
    return verdicts if explain else [bool(verdict) for verdict in verdicts]


class Verifier:
    """A verification key, checked, with what each verification needs of it computed once.

    is_checked  the key comes from ``read_zkey``, which has checked its points
    tables      of a verifier of the same key (``tables()``); computed if there are none
    Raises FormatError if a point of the key is off its curve, outside the subgroup, or (alpha, beta, gamma,
    delta) infinity.
    """

    def __init__(self, key: VerificationKey, is_checked: bool = False, tables: Sequence[Any] | None = None):
        self.key = key if is_checked else _checked_key(key)
        self._is_fast = is_installed("llvmlite")
        if self._is_fast:
            from evenload.zk.cpu.compiled_pairing import Equations

            k = self.key
            self._equations = Equations(k.alpha1, k.beta2, k.gamma2, k.delta2, k.ic, tables)

    def tables(self) -> list[Any]:
        """What another verifier of this key may be made with; nothing without compiled kernels."""
        return self._equations.tables if self._is_fast else []

    def why_not(self, public: Sequence[int | str], proof: Proof) -> str | None:
        """None if the proof is valid, else the reason it is not. Never raises, whatever it is given."""
        return self.why_not_each([(public, proof)])[0]

    def why_not_each(self, statements: Sequence[tuple[Sequence[int | str], Proof]]) -> list[str | None]:
        """For each (public inputs, proof), what ``why_not`` says; faster than one by one.

        The pairings of up to 256 statements are multiplied at once (``Equations``). A proof that is not valid
        is taken for valid with a chance of 2^-127 at most, whoever made it: powers are drawn each time.
        """
        answers: list[str | None] = []
        for start in range(0, len(statements), AT_ONCE):
            answers += self._why_not_some(statements[start : start + AT_ONCE])
        return answers

    def _why_not_some(self, statements: Sequence[Any]) -> list[str | None]:
        answers: list[str | None] = [None] * len(statements)
        read: dict[int, tuple[tuple[int, ...], Proof]] = {}
        for k, statement in enumerate(statements):
            try:
                read[k] = self._plain_statement(statement)
            except _Refused as refused:
                answers[k] = str(refused)
        for k in self._unequal(read):
            answers[k] = "the pairing equation does not hold"
        return answers

    def _plain_statement(self, statement: Any) -> tuple[tuple[int, ...], Proof]:
        public, proof = _read("the statement", lambda: _pair(statement, "the statement"))
        values = _read("the public inputs", lambda: _plain_public(public, self.key.n_public))
        plain = _read("the proof", lambda: _plain_proof(proof))
        if not self._has_order_r(plain.b):
            raise _Refused("pi_b is not in the subgroup of order r")
        return values, plain

    def _has_order_r(self, point: Any) -> bool:
        if not self._is_fast:
            return plain_pairing.has_order_r(point)
        from evenload.zk.cpu.compiled_pairing import has_order_r

        return has_order_r(point)

    def _unequal(self, read: dict[int, tuple[tuple[int, ...], Proof]]) -> list[int]:
        """The keys of those whose equation does not hold."""
        if not self._is_fast:
            return [k for k, (public, proof) in read.items()
                    if not plain_groth16.verify(self.key, public, proof)]  # fmt: skip
        keys = list(read)
        return [keys[k] for k in self._equations.unequal(list(read.values()))]


# --- What a stranger handed in, as plain integers -------------------------------------------------
class _Refused(Exception):
    """The reason why something is not read."""


def _read(what: str, read: Callable[[], Read]) -> Read:
    """The value of ``read()``. Raises _Refused, also where an object of a stranger raises when it is read."""
    try:
        return read()
    except _Refused:
        raise
    except Exception as error:
        raise _Refused(f"{what} cannot be read: it raised {quoted(type(error).__name__)}") from None


def _plain_public(public: Any, n_public: int) -> tuple[int, ...]:
    if not isinstance(public, list | tuple):
        raise _Refused(f"the public inputs are {_kind(public)}, not a list")
    values = tuple(islice(public, n_public + 1))
    if len(values) != n_public or len(public) != n_public:
        raise _Refused(f"{len(public)} public inputs were given, the key takes {n_public}")
    return tuple(_plain_input(k, value) for k, value in enumerate(values))


def _plain_input(k: int, value: Any) -> int:
    number = _integer(value, f"public input {k}")
    if not 0 <= number < FR.modulus:
        raise _Refused(f"public input {k} is not in [0, r): it would be an alias of another statement")
    return number


def _plain_proof(proof: Any) -> Proof:
    if not isinstance(proof, Proof):
        raise _Refused(f"the proof is {_kind(proof)}, not a Proof (Proof.from_json reads one)")
    plain = {}
    for name, group in (("a", G1), ("b", G2), ("c", G1)):
        plain[name] = _plain_point(getattr(proof, name), group.degree, f"pi_{name}")
        if plain[name] is None:
            raise _Refused(f"pi_{name} is infinity")
        if not group.contains(plain[name]):
            raise _Refused(f"pi_{name} is not on its curve, or a coordinate is not below q")
    return Proof(**plain)


def _plain_point(point: Any, degree: int, where: str) -> Any:
    """A pair of integers (degree 1) or of pairs of integers (2); None for infinity."""
    if point is None:
        return None
    x, y = _pair(point, where)
    if degree == 1:
        return _coordinate(x, where), _coordinate(y, where)
    (x0, x1), (y0, y1) = _pair(x, where), _pair(y, where)
    return (_coordinate(x0, where), _coordinate(x1, where)), (_coordinate(y0, where), _coordinate(y1, where))


def _pair(value: Any, where: str) -> tuple[Any, Any]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise _Refused(f"{where} has {quoted(value)} where a pair belongs")
    first, second = value
    return first, second


def _coordinate(value: Any, where: str) -> int:
    number = _integer(value, where)
    if not 0 <= number < FQ.modulus:
        raise _Refused(f"{where} is not on its curve, or a coordinate is not below q")
    return number


def _integer(value: Any, where: str) -> int:
    number = value if type(value) is int else decimal(value)
    if number is None:
        raise _Refused(f"{where} is {_kind(value)}, {quoted(value)}: {HOW_TO_WRITE}")
    return number


def _kind(value: Any) -> str:
    return "None" if value is None else f"of type {quoted(type(value).__name__)}"


def _checked_key(key: VerificationKey) -> VerificationKey:
    """The key with plain integers for coordinates. Raises FormatError."""
    try:
        return _read("the verification key", lambda: _plain_key(key))
    except _Refused as refused:
        raise FormatError(str(refused)) from None


def _plain_key(key: VerificationKey) -> VerificationKey:
    if not isinstance(key, VerificationKey):
        raise _Refused(f"the verification key is {_kind(key)} (VerificationKey.from_json reads one)")
    plain: dict[str, Any] = {}
    for name, group in (("alpha1", G1), ("beta2", G2), ("gamma2", G2), ("delta2", G2)):
        where = f"verification key: {name}"
        point = plain[name] = _plain_point(getattr(key, name), group.degree, where)
        if point is None or not group.contains(point):
            raise _Refused(f"{where} is infinity or not on its curve")
        if group is G2 and not plain_pairing.has_order_r(point):
            raise _Refused(f"{where} is not in the subgroup of order r")
    ic = [_plain_point(point, 1, f"verification key: IC[{k}]") for k, point in enumerate(key.ic)]
    if not ic:
        raise _Refused("verification key: IC has no point")
    for k, point in enumerate(ic):
        if not G1.contains(point):
            raise _Refused(f"verification key: IC[{k}] is not on its curve")
    return VerificationKey(**plain, ic=tuple(ic))
