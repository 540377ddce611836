"""The code that a stage runs, found without running it: files of the user's, and the packages beside."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evenload.pipeline.artifacts import digest_of
from evenload.pipeline.reuse.import_preparation import prepares_imports
from evenload.pipeline.target import CodeTarget
from evenload.same_code.code_facts import facts_of_reach
from evenload.same_code.module_reach import ModuleReach

__all__ = ["StageCode", "read_code"]

# Parts of evenload that decide what a stage's result is.
_OUR_OWN = ("evenload.pipeline.stages", "evenload.pipeline.artifacts")


@dataclass(frozen=True, slots=True)
class StageCode:
    """The code of one stage.

    facts     a fact for each file of the user's, and for each module that is not there (``same_code``)
    contents  the user's files and their bytes
    packages  top names of the packages that are imported
    """

    facts: dict[str, str]
    contents: tuple[tuple[Path, bytes], ...]
    packages: frozenset[str]

    @property
    def sources(self) -> tuple[tuple[str, str], ...]:
        """The user's files and the digests of all their bytes."""
        return tuple((str(file), digest_of(content)) for file, content in self.contents)

    @property
    def prepares_imports(self) -> bool:
        """Whether it may set environment variables, or change where modules are looked for."""
        return any(file.suffix != ".py" or prepares_imports(content) for file, content in self.contents)


def read_code(targets: Sequence[CodeTarget], folder: Path) -> StageCode:
    """Read the code that ``targets`` depend on; ``folder`` is that of the job file."""
    folders = [str(target.file.parent) for target in targets if target.file is not None]
    reach = ModuleReach([*dict.fromkeys(folders), *sys.path], base=folder, ours=_OUR_OWN)
    for target in targets:
        names = frozenset([target.name])
        if target.file is not None:
            reach.take_file(target.file, target.file.stem, "", names)
        else:
            reach.take_module(target.module, names)
    ours = Path(__file__).parents[2]
    read = ((file, content) for file, (_, content) in sorted(reach.sources.items()))
    contents = tuple((file, content) for file, content in read if not file.is_relative_to(ours))
    return StageCode(facts_of_reach(reach), contents, frozenset(reach.packages))
