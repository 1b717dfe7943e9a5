"""Rendering is what the reference implementation does, inside a sandbox."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from scheduler_service.api.chat_template import ChatTemplate, TemplateFailure
from tests.support.smol_files import smol_files

CHAT = [
    {"role": "user", "content": "Hi <there> & 'you' \"too\""},
    {"role": "assistant", "content": "naïve 🗼"},
    {"role": "user", "content": "line\n  two\n"},
]

TEMPLATES = (
    smol_files()["chat_template.jinja"].decode(),
    "{%- for m in messages %}\n    {%- if m.role == 'user' %}\n[INST] {{ m.content | trim }}"
    " [/INST]\n    {%- else %}\n  {{ m.content }}{{ eos_token }}\n    {% endif %}\n{%- endfor %}",
    "{{ bos_token }}{% for m in messages %}{{ m | tojson }}\n{% endfor %}",
    "{{ messages | tojson(indent=2) }}{% if tools is not none %}tools{% endif %}",
    "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "  {% set ns = namespace(n=0) %}\n  {% for m in messages %}\n  {% set ns.n = ns.n + 1 %}\n"
    "  {% endfor %}\n{{ ns.n }}{% if add_generation_prompt %}go{% endif %}",
)


def render(source: str, messages: Any = CHAT, *, add_generation_prompt: bool = True) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    return template.render(messages, add_generation_prompt=add_generation_prompt)


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="the reference is not installed"
)
@pytest.mark.parametrize("source", TEMPLATES)
def test_rendering_equals_the_reference(source: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    for add_generation_prompt in (True, False):
        (expected,), _ = render_jinja_template(
            [CHAT],
            chat_template=source,
            add_generation_prompt=add_generation_prompt,
            bos_token="<s>",
            eos_token="</s>",
        )
        assert render(source, add_generation_prompt=add_generation_prompt) == expected


def test_a_refusal_is_in_the_templates_own_words() -> None:
    source = "{{ raise_exception('roles must alternate user/assistant') }}"
    with pytest.raises(TemplateFailure, match=r"^roles must alternate user/assistant$"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + none }}",
        "{{ messages[9].content.strip() }}",
        "{{ 1 // 0 }}",
        "{{ undefined_function() }}",
        "{{ messages | nofilter }}",
        "{% include 'other' %}",
        "{% import 'other' as x %}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_every_failure_of_a_template_is_a_template_failure(source: str) -> None:
    with pytest.raises(TemplateFailure):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ messages.append({}) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ ''['__class__'] }}{{ (''|attr('__class__')).__mro__ }}",
        "{{ '%s'.format(messages).__class__.__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
    ],
)
def test_nothing_behind_the_sandbox_is_reached(source: str) -> None:
    try:
        shown = render(source)
    except TemplateFailure:
        return
    assert shown == ""  # a plain unsafe name is only undefined


def test_a_broken_template_is_refused_at_once() -> None:
    with pytest.raises(TemplateFailure, match="broken"):
        ChatTemplate("{% if %}", {})
