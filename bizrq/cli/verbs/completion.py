"""bizrq completion: print the script by which a shell completes verbs, flags and groups."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell that will read the script.")]) -> None:
    """Print the completion script of a shell.

    For bash and zsh, add `source <(bizrq completion bash)` to its start file. For fish, write the script to
    ~/.config/fish/completions/bizrq.fish.
    """
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="bizrq", complete_var="_BIZRQ_COMPLETE", shell=shell.value))
