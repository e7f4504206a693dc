"""Print the completion of `recbench` for a shell.

    eval "$(recbench completion bash)"            # in ~/.bashrc
    eval "$(recbench completion zsh)"             # in ~/.zshrc, after compinit
    recbench completion fish > ~/.config/fish/completions/recbench.fish

Names of commands and of flags are completed, and paths after them.
"""

from __future__ import annotations

import argparse

from recbench_spark import cli
from recbench_spark.commands.dispatch import PROGRAM, list_commands, make_parser
from recbench_spark.errors import OK

BASH = """\
_recbench() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} flags
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{names} --help --version" -- "$word"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{cases}
  esac
  case $word in
    -*) COMPREPLY=($(compgen -W "$flags" -- "$word")) ;;
    *) COMPREPLY=($(compgen -f -- "$word")) ;;
  esac
}}
complete -o filenames -F _recbench {program}
"""
ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def parser() -> cli.Parser:
    """Make the command's parser."""
    flags = cli.Parser(__doc__ or "")
    flags.add_argument("shell", choices=["bash", "zsh", "fish"], help="shell that completes")
    return flags


def main(args: argparse.Namespace) -> int:
    """Print the completion script."""
    flags = {name: list_flags(name) for name in list_commands()}
    if args.shell == "fish":
        print(write_fish(flags), end="")
        return OK
    print((ZSH if args.shell == "zsh" else "") + write_bash(flags), end="")
    return OK


def list_flags(command: str) -> list[str]:
    """Return a command's long flags."""
    made = make_parser(command)
    return [flag for action in made._actions for flag in action.option_strings if flag.startswith("--")]


def write_bash(flags: dict[str, list[str]]) -> str:
    """Return the completion for bash, which zsh reads too."""
    cases = "\n".join(f'    {name}) flags="{" ".join(own)}" ;;' for name, own in flags.items())
    return BASH.format(names=" ".join(flags), cases=cases, program=PROGRAM)


def write_fish(flags: dict[str, list[str]]) -> str:
    """Return the completion for fish."""
    start = f"complete -c {PROGRAM}"
    lines = [
        f'{start} -f -n __fish_use_subcommand -a {name} -d "{summary}"'
        for name, summary in list_commands().items()
    ]
    lines += [
        f'{start} -n "__fish_seen_subcommand_from {name}" -l {flag.removeprefix("--")}'
        for name, own in flags.items()
        for flag in own
    ]
    return "\n".join(lines) + "\n"
