"""The model's chat template: messages to prompt text.

Rendering is what HF tokenizers do: a sandbox that lets nothing be changed, `trim_blocks` and
`lstrip_blocks`, `raise_exception`, `strftime_now` and a `tojson` that leaves text as it is.

This module renders in the calling process and without limits; `template_process` adds them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

Message = Mapping[str, Any]


class TemplateFailure(Exception):
    """The template refused the messages or broke on them; the message is for the client."""


class ChatTemplate:
    """Raises TemplateFailure if `source` is no template."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens` are the variables templates know: bos_token, eos_token..."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateFailure(f"the chat template is broken: {error}") from error

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """Raises TemplateFailure with the template's own words where it has some."""
        try:
            return self._template.render(
                messages=messages,
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except jinja2.TemplateError as error:
            raise TemplateFailure(str(error) or type(error).__name__) from error
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            # Python's own errors in template expressions, e.g. None + "text".
            raise TemplateFailure(f"{type(error).__name__}: {error}") from error


class _Generation(Extension):
    """`{% generation %}` marks the assistant's part for training; here it is only its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - templates call it as HF's
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
