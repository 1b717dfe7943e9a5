"""`octavo generate PROMPT`: one answer on stdout, its timing on stderr."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from common.config import Parser
from octavo.commands.answer import Answer
from octavo.commands.sampling_flags import add_sampling_flags, sampling_options
from octavo.commands.server import add_server_flags, connected_client, server_options
from octavo.types import GenerateOptions, Message, Prompt


def main(argv: Sequence[str]) -> int:
    namespace = make_parser().parse_args(argv)
    text = sys.stdin.read() if namespace.prompt == "-" else namespace.prompt
    prompt: Prompt = [Message(role="user", content=text)] if namespace.chat else text
    options: GenerateOptions = {**server_options(namespace), **sampling_options(namespace)}
    with connected_client(namespace) as client:
        answer = Answer()
        answer.stream(client, prompt, **options)
    print(answer.timing.summary(), file=sys.stderr)
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="octavo generate", description="Stream one answer to stdout.", allow_abbrev=False
    )
    parser.add_argument("prompt", metavar="PROMPT", help="text to continue; - reads it from stdin")
    parser.add_argument(
        "--chat", action="store_true", help="take the prompt as a user's message, not as raw text"
    )
    add_server_flags(parser)
    add_sampling_flags(parser)
    return parser
