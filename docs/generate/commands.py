"""Reference of the command line, from the parsers of `pkb`."""

from __future__ import annotations

import argparse
from textwrap import fill

from docs.generate.markdown import table
from pkb_gym.cli.program import make_parser


def reference() -> str:
    """A section for each command: its description, usage, arguments and options."""
    parser = make_parser()
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return "\n".join(_section(each) for each in dict.fromkeys(commands.choices.values()))


def _section(parser: argparse.ArgumentParser) -> str:
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS and action not in nested]
    rows = [(_name(parser, action), _help(parser, action)) for action in shown if "--help" not in action.option_strings]
    described = parser.description or ""
    usage = fill(parser.format_usage().removeprefix("usage: "), 80, subsequent_indent="    ", break_on_hyphens=False)
    options = f"\n{table(('argument', 'meaning'), rows)}" if rows else ""
    below = "".join(f"\n{_section(each)}" for action in nested for each in action.choices.values())
    return f"## {parser.prog}\n\n{described}\n\n```console\n{usage}\n```\n{options}{below}"


def _name(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = parser._get_formatter()
    return f"`{formatter._format_action_invocation(action)}`"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return " ".join(parser._get_formatter()._expand_help(action).split()) if action.help else ""
