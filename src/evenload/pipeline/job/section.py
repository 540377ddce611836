"""The base of all sections of a job file, and types they share. Needs pydantic (extra ``yaml``)."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import CoreSchema

from evenload._memory_sizes import parse_size, size_text
from evenload.errors import EvenloadError
from evenload.pipeline.job.yaml_text import Fault
from evenload.pipeline.target import LiveCode, locate_target

Code = TypeVar("Code", bound=str | LiveCode)
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=40)]


Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(size_text, return_type=str),
    WithJsonSchema(
        {"type": "string", "pattern": r"^\s*[0-9.]+\s*[A-Za-z]+\s*$", "examples": ["22GiB", "24GB"]}
    ),
]
"""Bytes, written with a unit such as GiB."""


class Faults(ValueError):
    """Several faults below one place of the file, each ``(path below it, sentence)``."""

    def __init__(self, faults: Sequence[Fault]):
        super().__init__("; ".join(text for _, text in faults))
        self.faults = faults


class Section(BaseModel):
    """A section of the job file: unknown keys are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe each key by the text below its field; pydantic would read all sources in each program."""
        schema = handler(core)
        keys = handler.resolve_ref_schema(schema).get("properties", {})
        for owner in cls.__mro__:
            if owner is not Section and issubclass(owner, Section):
                for name, text in _field_texts(owner):
                    keys[name].setdefault("description", text)
        return schema


def _field_texts(section: type) -> Iterator[tuple[str, str]]:
    """Yield each field of a class that has a text below it, with that text."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    for field, below in pairwise(tree.body if isinstance(tree, ast.ClassDef) else ()):
        if not (isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            yield field.target.id, inspect.cleandoc(str(below.value.value))


def one_line(error: EvenloadError) -> str:
    """Return an error and its hint as one sentence."""
    return f"{error.message}; {error.hint}" if error.hint else error.message


def job_folder(info: ValidationInfo):
    """Return the folder that relative paths belong to; None if files are not to be looked up."""
    return (info.context or {}).get("folder")


def located(target: Code, info: ValidationInfo) -> Code:
    """Return ``target`` if its code is found. Raises ConfigError with what is wrong."""
    folder = job_folder(info)
    if folder is not None:
        locate_target(target, folder)
    return target
