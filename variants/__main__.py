"""`python -m variants`: see `variants.commands`."""

from __future__ import annotations

import sys

from common.errors import run_command_line
from variants import compile_commands


def main() -> None:
    """Run the command line.

    Loading torch takes more than a second, so a command that answers from the cache is run without it.
    """
    if sys.argv[1:2] and sys.argv[1] in compile_commands.NAMES:
        app = compile_commands.app
    else:
        from variants.commands import app
    run_command_line(app)


if __name__ == "__main__":
    main()
