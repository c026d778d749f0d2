"""`blockscale completion`: the shell's completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .output import say

_HELP = """Print the completion script of a shell.

\b
bash:  eval "$(blockscale completion bash)"    in ~/.bashrc
zsh:   eval "$(blockscale completion zsh)"     in ~/.zshrc
fish:  blockscale completion fish | source     in ~/.config/fish/config.fish
"""


@click.command(help=_HELP, short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.ClickException(f"no completion for {shell}")
    root = click.get_current_context().find_root()
    say(kind(root.command, {}, "blockscale", "_BLOCKSCALE_COMPLETE").source())
