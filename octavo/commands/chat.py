"""`octavo chat`: a conversation in the terminal, or over a pipe, one line a turn."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence

from common.config import Parser
from common.errors import InvalidRequestError
from octavo.commands.answer import Answer
from octavo.commands.sampling_flags import add_sampling_flags, sampling_options
from octavo.commands.server import add_server_flags, connected_client, server_options
from octavo.sync_client import SyncClient
from octavo.types import GenerateOptions, Message

_HELP = (
    "/reset forgets the conversation, /help says this, /exit, /quit or Ctrl-D leaves,"
    " Ctrl-C stops an answer"
)


def main(argv: Sequence[str]) -> int:
    namespace = make_parser().parse_args(argv)
    system = [Message(role="system", content=namespace.system)] if namespace.system else []
    options: GenerateOptions = {**server_options(namespace), **sampling_options(namespace)}
    with connected_client(namespace) as client:
        Conversation(client, system, options).run()
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="octavo chat", description=f"Chat with a model. {_HELP}.", allow_abbrev=False
    )
    parser.add_argument("--system", metavar="TEXT", help="system message of the conversation")
    add_server_flags(parser)
    add_sampling_flags(parser)
    return parser


class Conversation:
    """Keeps the turns that were answered; a turn that failed leaves no trace."""

    def __init__(
        self, client: SyncClient, system: Sequence[Message], options: GenerateOptions
    ) -> None:
        self._client = client
        self._system = list(system)
        self._turns = list(system)
        self._options = options

    def run(self) -> None:
        """Until the input ends."""
        if sys.stdin.isatty():
            print(_HELP)
        for line in _lines():
            if line in ("/exit", "/quit"):
                return
            if line == "/help":
                print(_HELP, flush=True)
            elif line == "/reset":
                self._turns = list(self._system)
            elif line:
                self._take_turn(line)

    def _take_turn(self, line: str) -> None:
        asked = [*self._turns, Message(role="user", content=line)]
        answer = Answer()
        try:
            answer.stream(self._client, asked, **self._options)
        except KeyboardInterrupt:
            print("(stopped)")
        except InvalidRequestError as error:
            # Most likely the conversation has outgrown the model's context.
            print(f"refused: {error} (/reset starts anew)", file=sys.stderr)
            return
        self._turns = [*asked, Message(role="assistant", content=answer.text)]
        print(f"[{answer.timing.summary()}]", flush=True)


def _lines() -> Iterator[str]:
    """What the user types, without the ends of lines; stops at the end of input or Ctrl-C."""
    if not sys.stdin.isatty():
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() its line editing and history
    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
