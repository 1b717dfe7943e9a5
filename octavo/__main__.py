"""The `octavo` command. Only the module of the command that was asked for is imported."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from common.errors import ConfigError, OctavoError
from common.version import VERSION

COMMANDS = {
    "up": "start executors and a scheduler on this machine and serve",
    "generate": "stream one answer to a prompt",
    "chat": "converse with a model in the terminal",
    "demo": "start everything on a real model, stream one answer, stop everything",
    "size": "say how much KV cache a model needs and how fast a device could run it",
    "simulate": "run an experiment in memory management",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 done, 1 failed, 2 wrong flags, 130 interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # gRPC's C core reports ordinary reconnects on stderr, amid streamed answers.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0
    if arguments[0] == "--version":
        print(f"octavo {VERSION}")
        return 0
    name = arguments[0]
    if name not in COMMANDS:
        print(f"octavo: there is no command {name!r}\n\n{usage()}", file=sys.stderr)
        return 2
    command = importlib.import_module(f"octavo.commands.{name}")
    try:
        return int(command.main(arguments[1:]))
    except ConfigError as error:
        print(f"octavo {name}: {error}", file=sys.stderr)
        return 2
    except OctavoError as error:
        print(f"octavo {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: octavo COMMAND [flags]",
            "",
            *lines,
            "",
            "octavo COMMAND --help lists its flags.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
