"""`python -m variants`: see `variants.commands`."""

from __future__ import annotations

import sys

from common.errors import OWN_ERRORS
from variants import compile_commands


def main() -> None:
    """Run the command line; the project's own errors end it with one line and exit code 2.

    Loading torch takes more than a second, so a command that answers from the cache is run without it.
    """
    if sys.argv[1:2] and sys.argv[1] in compile_commands.NAMES:
        app = compile_commands.app
    else:
        from variants.commands import app
    try:
        app()
    except OWN_ERRORS as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
