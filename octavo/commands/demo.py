"""`octavo demo`: both services, one real model, one streamed answer; then everything ends."""

from __future__ import annotations

from collections.abc import Sequence

from common.config import Parser
from common.errors import ServerError
from octavo.commands.answer import Answer
from octavo.commands.server import own_server
from octavo.types import Message

MODEL = "smollm2-135m"
QUESTION = "Explain gravity in one short sentence."
MAX_TOKENS = 96


def main(argv: Sequence[str]) -> int:
    Parser(
        prog="octavo demo", description="Start everything, stream one answer, stop everything."
    ).parse_args(argv)
    print(f"Starting a scheduler and an executor with {MODEL} ...", flush=True)
    with own_server(["--model", MODEL]) as client:
        print(f"> {QUESTION}", flush=True)
        answer = Answer()
        turn = Message(role="user", content=QUESTION)
        answer.stream(client, [turn], temperature=0.0, max_tokens=MAX_TOKENS)
    if not answer.timing.num_tokens:
        raise ServerError("the answer holds no token")
    print(f"[{answer.timing.summary()}]")
    return 0
