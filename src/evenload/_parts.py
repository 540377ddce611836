"""The parts of evenload: which distribution has which rooms, and what an import of an absent one says."""

import sys

ROOMS = {
    "evenload-kernels": "gpu",
    "evenload-moe": "moe balance.flow cli.moe",
    "evenload-clients": "clients cli.clients",
    "evenload-zk": "merkle zk cli.merkle cli.prove cli.serving cli.zk",
    "evenload": "audit cli dashboard datasets executor frames futures integrations joblib pipeline report"
    " same_code training",
}
"""Rooms by the distribution that has them; packages/parts.toml has the same by files."""


class AbsentRoom:
    """The last finder of imports: a room that no other finder knows is an error with its install line."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Raise MissingExtra if ``fullname`` is a room of a part that is not installed."""
        room = fullname.removeprefix("evenload.")
        for distribution, rooms in ROOMS.items():
            if room != fullname and room in rooms.split():
                from evenload._version import __version__
                from evenload.errors import MissingExtra  # a fifth of the start of ``import evenload``

                raise MissingExtra(
                    f"{fullname} is not installed: it comes with the package {distribution}",
                    hint=f"pip install {distribution}=={__version__}",  # parts are of one version
                )


# Once, and at the end: it is asked only for what would be a ModuleNotFoundError without it.
if not any(isinstance(finder, AbsentRoom) for finder in sys.meta_path):
    sys.meta_path.append(AbsentRoom())
