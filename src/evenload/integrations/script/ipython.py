"""``%load_ext evenload``: pools that cells of a notebook make are dealt from then on; ``%evenload`` tells."""

import sys
from typing import Any

from evenload.integrations.script import takeover


def load(shell: Any) -> None:
    """Have the pools of this notebook be taken over, and give it the magic ``%evenload``."""
    if takeover.is_script():  # loaded again, or ``evenload exec`` runs the notebook
        return
    run = takeover.install()

    def told(line: str) -> None:
        """Say how even the pools of this notebook were so far, and what was left as it was."""
        from evenload.integrations.script.ending import facts, text

        sys.stdout.write(text(facts(run)) + "\n")

    shell.register_magic_function(told, magic_name="evenload")
