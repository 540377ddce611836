"""``evenload completion``: the script that completes commands and options in a shell."""

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the completion script of a shell.

    \b
    bash:  evenload completion bash >> ~/.bashrc
    zsh:   evenload completion zsh >> ~/.zshrc
    fish:  evenload completion fish > ~/.config/fish/completions/evenload.fish
    """
    from click.shell_completion import get_completion_class

    from evenload.cli import cli

    script = get_completion_class(shell)
    assert script is not None, "click knows the shells listed above"
    click.echo(script(cli, {}, "evenload", "_EVENLOAD_COMPLETE").source())
    return 0
