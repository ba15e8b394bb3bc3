"""docs/commands.md from `--help`: what the reference says is what the program does.

python tools/build_command_reference.py           write docs/commands.md
python tools/build_command_reference.py --check   exit code 1 where it is out of date
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from reference import keep
from whence.cli import main

WIDTH = 100
HEAD = """\
# Commands

Generated from `--help` by `tools/build_command_reference.py`; a test keeps it in step.
"""


def sections(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    """The help of a command, then that of the commands below it."""
    context = click.Context(
        command,
        info_name=name,
        parent=parent,
        terminal_width=WIDTH,
        max_content_width=WIDTH,
        **command.context_settings,
    )
    lines = (line.rstrip() for line in command.get_help(context).splitlines())
    yield f"## `{context.command_path}`\n\n```text\n" + "\n".join(lines) + "\n```\n"
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None and not found.hidden:
                yield from sections(found, below, context)


def reference() -> str:
    return "\n".join([HEAD, *sections(main, "whence", None)])


if __name__ == "__main__":
    keep("commands.md", reference())
