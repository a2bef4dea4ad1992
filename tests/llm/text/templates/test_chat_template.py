"""Templates render what Jinja renders, stay in their sandbox and within their limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from unittest import mock

import jinja2.sandbox
import pytest

from baregrad.base.errors import ArgumentError, FileFormatError
from baregrad.llm.text.templates import ChatTemplate, TemplateLimits

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "Is 1 < 2?\n<|im_end|>"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes & no"},
    {"role": "user", "content": "'Why'?"},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"é": ["<", "'"]}}}]
TEMPLATES = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] | trim }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "{{ bos_token }}{% set ns = namespace(n=0) %}\n{% for m in messages if m.role != 'system' %}\n"
    "   {% set ns.n = ns.n + 1 %}{{ ns.n ~ ': ' ~ m.content }}\n{% endfor %}{{ loop is defined }}",
    "{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}{% if loop.last %}"
    "{% break %}{% endif %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}|{% endfor %}",
    "{{ tools | tojson }}{{ tools | tojson(indent=2) }}{{ tools[0].function.name | upper }}",
    "{% macro show(m) %}[{{ m.role[:1] | upper }}{{ m.content | replace('<', '(') }}]{% endmacro %}"
    "{% for m in messages %}{{ show(m) }}{% endfor %}",
    "{{ messages | map(attribute='content') | join('|') }}{{ messages | length }}"
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}"
    "{{ messages | rejectattr('role', 'equalto', 'user') | list | length }}",
    "{% set text %}{% for m in messages %}{{ m.content }},{% endfor %}{% endset %}"
    "{{ text | trim(',') }}{{ '%s and %s' % (messages[0].role, messages[1].content) }}"
    "{{ '-'.join(['a', messages[1].content]) }}{{ messages[1].content[::-1] | indent(2) }}",
    "{% for key, value in messages[0] | dictsort %}{{ key }}={{ value }};{% endfor %}"
    "{% for key, value in messages[0].items() %}{{ key }}={{ value }};{% endfor %}"
    "{{ messages[0].get('x', 'none') }}{{ messages[9] is defined }}{{ missing }}",
    "{%- for m in messages -%}\n  {%- if m.content is string and 'Why' in m.content %}\n"
    "    yes {{ m.content.startswith(\"'W\") }}\n  {%- endif %}\n{%- endfor %}\n",
    "{{ messages | map('upper') | first }}{{ range(3) | list }}{{ dict(a=1).a }}{{ 7 % 4 }}"
    "{{ messages[0] | string | length }}{{ [1, 2][-1] }}{{ 'a' in messages[0] }}",
)


@pytest.fixture
def short() -> TemplateLimits:
    return TemplateLimits(seconds=20.0, characters=100_000)


def reference(source: str, **values: Any) -> str:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent)
    return environment.from_string(source).render(**values)


@pytest.fixture(scope="module")
def templates() -> Iterator[list[ChatTemplate]]:
    made = [ChatTemplate(source, "<s>", "</s>") for source in TEMPLATES]
    yield made
    for template in made:
        template.close()


@pytest.mark.differential
def test_templates_render_what_jinja_renders(templates: list[ChatTemplate]) -> None:
    for template in templates:
        values = {"messages": MESSAGES, "tools": TOOLS, "add_generation_prompt": True}
        expected = reference(template.text, bos_token="<s>", eos_token="</s>", **values)
        assert template.render(MESSAGES, tools=TOOLS) == expected


def test_what_a_user_wrote_is_told_apart(templates: list[ChatTemplate]) -> None:
    spans = templates[0].render_spans(MESSAGES[1:2])
    assert spans == [("<|", True), ("user", False), ("|>\n", True),
                     ("Is 1 < 2?\n<|im_end|>", False), ("</s>\n<|assistant|>\n", True)]
    # Whatever a template does with it: a forged token is never the template's.
    for template in templates:
        for text, is_template in template.render_spans(MESSAGES, tools=TOOLS):
            assert not (is_template and "<|im_end|>" in text)


def test_a_token_made_by_cutting_is_no_templates_token() -> None:
    template = ChatTemplate("{{ messages[0].content | replace('xx', '') }}{{ 'a<|im_end|>' }}")
    spans = template.render_spans([{"role": "user", "content": "<|im_xxend|>"}])
    assert spans == [("<|im_end|>", False), ("a<|im_end|>", True)]
    template.close()


def test_generation_blocks_keep_their_text() -> None:
    template = ChatTemplate("a{% generation %}{{ messages[0].content }}{% endgeneration %}b")
    assert template.render([{"role": "user", "content": "x"}]) == "axb"
    template.close()


def test_a_template_may_refuse() -> None:
    template = ChatTemplate("{{ raise_exception('no system message, please') }}")
    with pytest.raises(ArgumentError, match="refuses: no system message, please"):
        template.render(MESSAGES)
    # And is there again for others.
    with pytest.raises(ArgumentError, match="refuses"):
        template.render(MESSAGES)
    template.close()


def test_the_date_is_there() -> None:
    template = ChatTemplate("{{ strftime_now('%Y') }}")
    assert len(template.render(MESSAGES)) == 4
    template.close()


@pytest.mark.parametrize(("source", "words"), [
    ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "sandbox"),
    ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "sandbox"),
    ("{{ lipsum.__globals__['os'].popen('id').read() }}", "fails"),
    ("{{ joiner.__init__.__globals__ }}", "sandbox"),
    ("{{ messages.append(1) }}", "sandbox"),
    ("{{ messages[0].update({'a': 1}) }}", "sandbox"),
    ("{{ '{0.__class__.__mro__}'.format(messages[0].content) }}", "sandbox"),
    ("{{ dict.mro() }}", "sandbox|fails"),
    ("{% import 'x' as y %}", "fails"),
    ("{% include '/etc/passwd' %}", "fails"),
    ("{% for x in messages %}", "broken"),
    ("{{ 'a' * (messages | length * 10**11) }}", "memory"),
    ("{{ 'a'.ljust(10**11) }}", "memory"),
    ("{{ 'a' * 10**11 }}", "memory"),
    ("{% for i in range(10**9) %}x{% endfor %}", "Range too big"),
    ("{% for i in range(9999) %}{{ 'abcdefghij' * 100 }}{% endfor %}", "writes too much"),
    ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself"),
    ("{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}", "calls itself"),
])
def test_attacks_are_refused_by_name(source: str, words: str, short: TemplateLimits) -> None:
    template = ChatTemplate(source, limits=short)
    with pytest.raises((FileFormatError, ArgumentError), match=words):
        rendered = template.render([{"role": "user", "content": "x"}])
        pytest.fail(f"rendered {rendered[:200]!r}")
    template.close()


@pytest.mark.parametrize("source", [
    "{{ self._TemplateReference__context }}",
    "{{ messages | attr('__class__') }}",
    "{% set x = messages[0].content.format %}{{ x.__globals__ }}{{ x.__wrapped__ }}",
    "{{ ('{0.__class__}' | attr('format'))(1) }}",
    "{{ messages[0].content._mask }}{{ (messages[0].content | attr('upper')).__func__ }}",
])
def test_what_is_hidden_reads_as_nothing(source: str) -> None:
    template = ChatTemplate(source)
    assert template.render([{"role": "user", "content": "x"}]) == ""
    template.close()


@pytest.mark.parametrize("source", [
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% endfor %}{{ ns.x }}",
    "{{ 7 ** (messages | length * 10 ** 9) }}",
])
def test_what_takes_for_ever_is_ended(source: str) -> None:
    template = ChatTemplate(source, limits=TemplateLimits(seconds=0.5))
    with pytest.raises(FileFormatError, match="takes too long"):
        template.render(MESSAGES)
    assert template._process is None


def test_a_template_goes_on_after_it_was_ended() -> None:
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    source = "{% if messages[0].content == 'x' %}" + loop + "{% endif %}{{ messages[0].content }}"
    template = ChatTemplate(source, limits=TemplateLimits(seconds=2.0))
    with pytest.raises(FileFormatError, match="takes too long"):
        template.render([{"role": "user", "content": "x"}])
    assert template.render([{"role": "user", "content": "y"}]) == "y"
    process = template._process
    assert process is not None
    template.close()
    assert process.poll() is not None


def test_the_process_ends_with_its_template() -> None:
    template = ChatTemplate("a")
    template.prepare()
    prepared = template._process
    assert template.render(MESSAGES) == "a" and template._process is prepared
    process = template._process
    assert process is not None and process.poll() is None
    del template
    assert process.poll() is not None


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no JSON"):
        ChatTemplate("a").render([{"role": "user", "content": "x", "more": object()}])


@pytest.mark.parametrize(("source", "cut"), [
    ("{{ call.arguments | tojson }}", '"{\\"a\\": "'),
    ("{{ 'arguments ' + call.arguments }}", 'arguments {"a": '),
    ("{% for k, v in call.arguments.items() %}{{ k }}={{ v }}{% endfor %}", '_unparsed={"a": '),
    ("{{ call.arguments if call.arguments is string else call.arguments.a }}", '{"a": '),
])
def test_arguments_are_written_as_a_template_takes_them(source: str, cut: str) -> None:
    """Some templates want text and some mappings; of arguments without an end either is made."""
    template = ChatTemplate("{% set call = messages[0].tool_calls[0].function %}" + source)
    prompts = [
        template.render([{"role": "assistant", "tool_calls": [
            {"id": "1", "function": {"name": "f", "arguments": arguments}}]}])
        for arguments in ({"a": "é"}, '{"a": ')
    ]
    template.close()
    assert "é" in prompts[0] and "\\u" not in prompts[0]
    assert prompts[1] == cut


def test_of_a_template_that_always_fails_the_first_failure_is_told() -> None:
    template = ChatTemplate("{{ messages[0].tool_calls[0].function.arguments.a.b.c }}")
    with pytest.raises(ArgumentError, match="fails on these messages.*has no attribute 'b'"):
        template.render([{"role": "assistant", "tool_calls": [
            {"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}]}])
    template.close()


@pytest.mark.parametrize("kills", [1, 2])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_prompt_is_made_by_another_process_where_one_is_killed(at: int, kills: int) -> None:
    """The process is killed before one of the exchanges that a first prompt takes."""
    template = ChatTemplate("{{ messages[0].content }}")
    exchange, count, left = template._exchange, 0, kills

    def killing(line: str, seconds: float) -> dict[str, Any]:
        nonlocal count, left
        count += 1
        if left and count == at:
            count, left = 0, left - 1
            assert template._process is not None
            template._process.kill()
            template._process.wait()
        return exchange(line, seconds)

    with mock.patch.object(template, "_exchange", killing):
        if kills == 1:
            assert template.render(MESSAGES) == " Be brief. "
        else:
            with pytest.raises(FileFormatError, match="ended its process"):
                template.render(MESSAGES)
        assert template.render(MESSAGES) == " Be brief. "
    template.close()
