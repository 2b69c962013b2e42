"""Command lines of public coding agents without their terminals, a line each; `workspace:NAME ARGS` adds arguments.

They edit files and run programs without asking: the sandbox of the workspace takes the place of theirs.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from pkb_gym.agents.workspace.folder import EVALUATE, TASK


@dataclass(frozen=True)
class CodingCli:
    """A coding agent.

    Attributes:
        program: Program and its subcommand, before the user's arguments.
        arguments: Arguments after them; {prompt} stands for the prompt, {solution} for the file to write.
        variables: Names of variables that hold its keys.
    """

    program: tuple[str, ...]
    arguments: tuple[str, ...]
    variables: tuple[str, ...]


def _cli(program: str, arguments: str, *variables: str) -> CodingCli:
    return CodingCli(tuple(program.split()), tuple(shlex.split(arguments)), variables)


_AIDER = f"--yes-always --no-git --auto-test --test-cmd './{EVALUATE} {{solution}}' --message-file {TASK} {{solution}}"
_CLAUDE = "--dangerously-skip-permissions --verbose --output-format stream-json -p {prompt}"
_CODEX = "--json --skip-git-repo-check --sandbox danger-full-access {prompt}"
_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY")

CODING_CLIS = {
    "aider": _cli("aider", _AIDER, *_KEYS),
    "claude": _cli("claude", _CLAUDE, "ANTHROPIC_API_KEY"),
    "codex": _cli("codex exec", _CODEX, "CODEX_API_KEY", "OPENAI_API_KEY"),
    "gemini": _cli("gemini", "--approval-mode=yolo -p {prompt}", "GEMINI_API_KEY"),
    "opencode": _cli("opencode run", "{prompt}", *_KEYS),
}
"""Name -> coding agent."""


def command_words(command: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The whole command line of a program or of a coding agent's name, and the variables that it needs.

    Example:
        >>> command_words(("codex", "--model", "gpt-5"))[0][:4]
        ('codex', 'exec', '--model', 'gpt-5')
        >>> command_words(("./agent.sh",))
        (('./agent.sh',), ())
    """
    cli = CODING_CLIS.get(command[0])
    if cli is None:
        return command, ()
    return (*cli.program, *command[1:], *cli.arguments), cli.variables
