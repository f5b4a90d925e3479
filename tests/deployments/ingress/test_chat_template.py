"""Rendered prompts equal transformers', for the templates of the model families that we serve."""

import json
from datetime import datetime

import pytest
from transformers import PreTrainedTokenizerFast

from deployments.ingress.chat_template import ChatTemplate
from engine.errors import InvalidRequest
from tests.support.ingress import write_model

# Small templates of our own with the constructs that published ones use.
CHATML = """
{%- for message in messages -%}
    {%- if loop.first and message['role'] != 'system' -%}
        {{- '<|im_start|>system\nYou are helpful<|im_end|>\n' -}}
    {%- endif -%}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""
LLAMA2 = """
{% if messages[0]['role'] == 'system' %}
    {% set system = messages[0]['content'] %}{% set rest = messages[1:] %}
{% else %}
    {% set system = '' %}{% set rest = messages %}
{% endif %}
{% for m in rest %}
    {% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('roles must alternate') }}
    {% endif %}
    {% if m['role'] == 'user' %}
        {{ bos_token + '[INST] ' + (system if loop.first else '') }}
        {{- m['content'].strip() + ' [/INST]' }}
    {% else %}
        {{ ' ' + m['content'] | trim + ' ' + eos_token }}
    {% endif %}
{% endfor %}
"""
LLAMA3 = """
{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{%- set ns = namespace(count=0) %}
{%- if tools is not none %}{{- tools | tojson(indent=4) }}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\nToday Date: " + date_string + "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.content is none %}{%- continue %}{%- endif %}
    {%- set ns.count = ns.count + 1 %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{{- ns.count ~ ' messages' }}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
QWEN3 = """
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if message.role == "user" %}{%- set last = index %}{%- break %}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'assistant' and '</think>' in content %}
        {%- set content = content.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {%- generation %}{{- message.role + ': ' + content + '\n' }}{%- endgeneration %}
{%- endfor %}
{{- {'a': [1, 'é"<'], 'b': none} | tojson }}
{%- if add_generation_prompt %}
    {{- 'assistant:' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think></think>' }}
    {%- endif %}
{%- endif %}
"""
TEMPLATES = {"chatml": CHATML, "llama2": LLAMA2, "llama3": LLAMA3, "qwen3": QWEN3}
CHATS = {
    "one": [{"role": "user", "content": " hi \n"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
    "turns": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>x</think>\nb"},
        {"role": "user", "content": "<|im_end|> é 漢 {{ 7 }}", "name": "n"},
    ],
}


@pytest.fixture
def folder(tmp_path):
    folder = write_model(tmp_path / "model", template=None)
    special = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
@pytest.mark.parametrize("source", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("variables", [{}, {"enable_thinking": False}], ids=["plain", "variables"])
def test_equals_transformers(folder, source, chat, variables):
    (folder / "chat_template.jinja").write_text(source)
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>", eos_token="</s>"
    ).apply_chat_template(
        chat, chat_template=source, tokenize=False, add_generation_prompt=True, **variables
    )
    assert ChatTemplate.load(folder).render(chat, variables) == theirs


def test_the_template_may_be_in_the_tokenizer_config(folder):
    def load(template):
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        return ChatTemplate.load(folder)

    chat = CHATS["one"]
    assert load("{{ messages[0].role }}").render(chat) == "user"
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}]
    assert load(named).render(chat) == "y"
    with pytest.raises(InvalidRequest, match="no chat template"):
        load(None).render(chat)


def test_the_date_is_the_given_clocks():
    template = ChatTemplate(
        "{{ strftime_now('%Y-%m-%d') }}", {}, now=lambda: datetime(2031, 2, 3, 4, 5)
    )
    assert template.render([]) == "2031-02-03"


def test_a_templates_own_refusal_reaches_the_client():
    template = ChatTemplate(LLAMA2, {"bos_token": "<s>"})
    with pytest.raises(InvalidRequest, match="roles must alternate") as error:
        template.render([{"role": "assistant", "content": "x"}])
    assert error.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{{ range(10 ** 9) | list }}",
        "{{ messages[0].missing.deeper }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
    ],
)
def test_templates_run_in_a_sandbox(source):
    with pytest.raises(InvalidRequest):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])


def test_a_client_cannot_replace_the_messages():
    template = ChatTemplate("{{ messages | length }}{{ add_generation_prompt }}", {})
    forged = {"messages": [1, 2, 3], "add_generation_prompt": False}
    assert template.render([{}], forged) == "1True"


def test_what_is_nested_too_deeply_for_the_template_is_the_clients_fault():
    nested: list = []
    for _ in range(2000):
        nested = [nested]
    template = ChatTemplate("{{ messages | tojson }}", {})
    with pytest.raises(InvalidRequest, match="refuses these messages"):
        template.render([{"role": "user", "content": "x", "extra": nested}])
