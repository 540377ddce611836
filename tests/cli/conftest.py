"""Commands as a person or a script types them, run in this process."""

import pytest

from evenload.cli import main


@pytest.fixture
def command(capsys):
    """``command("devices", "--json")`` gives the exit code, stdout and stderr of the command."""

    def run(*words):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([*map(str, words)])
        return ended.value.code, *capsys.readouterr()

    return run
