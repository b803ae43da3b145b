"""Model families: the chat template each published, and the `prompt_format` that gives the same prompts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, eq=False, repr=False)
class Family:
    """A published chat template beside our format.

    `system`: the published template takes a system message. `strips`: it strips white space from contents.
    `begins`: it writes the BOS token itself; of one that does not, the tokenizer does.
    """

    name: str
    source: str
    published: str
    keys: dict[str, Any]
    eos: str
    system: bool = True
    strips: bool = True
    begins: bool = True
    special_tokens: list[str] = field(default_factory=list)

    @property
    def bos(self) -> str:
        return str(self.keys["bos"])


_ALTERNATE = (
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
)

LLAMA_2 = Family(
    name="llama-2-chat",
    source="meta-llama/Llama-2-7b-chat-hf: tokenizer_config.json",
    published=(
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
        "{% set system_message = messages[0]['content'] %}{% else %}{% set loop_messages = messages %}"
        "{% set system_message = false %}{% endif %}{% for message in loop_messages %}" + _ALTERNATE + "{% if"
        " loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message +"
        " '\\n<</SYS>>\\n\\n' + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
        "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}"
        "{% endfor %}"
    ),
    keys={
        "bos": "<s>",
        "system": "<<SYS>>\n{instruction}\n<</SYS>>\n\n",
        "user": "[INST] {system}{instruction} [/INST]",
        "assistant": " {instruction} </s><s>",
        "system_in_user": True,
    },
    eos="</s>",
    special_tokens=["<s>", "</s>"],
)

LLAMA_3 = Family(
    name="llama-3-instruct",
    source="meta-llama/Meta-Llama-3-8B-Instruct: tokenizer_config.json",
    published=(
        "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' +"
        " message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0"
        " %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
    ),
    keys={
        "bos": "<|begin_of_text|>",
        "system": "<|start_header_id|>system<|end_header_id|>\n\n{instruction}<|eot_id|>",
        "user": "<|start_header_id|>user<|end_header_id|>\n\n{instruction}<|eot_id|>",
        "assistant": "<|start_header_id|>assistant<|end_header_id|>\n\n{instruction}<|eot_id|>",
        "trailing_assistant": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    },
    eos="<|eot_id|>",
    special_tokens=["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
)

MISTRAL_V01 = Family(
    name="mistral-7b-instruct-v0.1",
    source="mistralai/Mistral-7B-Instruct-v0.1: tokenizer_config.json",
    published=(
        "{{ bos_token }}{% for message in messages %}" + _ALTERNATE + "{% if message['role'] == 'user' %}"
        "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
        "{{ message['content'] + eos_token + ' ' }}"
        "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
    ),
    keys={
        "bos": "<s>",
        "system": "{instruction}\n\n",
        "user": "[INST] {system}{instruction} [/INST]",
        "assistant": "{instruction}</s> ",
        "system_in_user": True,
        "strip_whitespace": False,
    },
    eos="</s>",
    system=False,
    strips=False,
    special_tokens=["<s>", "</s>"],
)

ZEPHYR = Family(
    name="zephyr-7b-beta",
    source="HuggingFaceH4/zephyr-7b-beta: tokenizer_config.json",
    published=(
        "{% for message in messages %}\n{% if message['role'] == 'user' %}\n"
        "{{ '<|user|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'system' %}\n"
        "{{ '<|system|>\n' + message['content'] + eos_token }}\n{% elif message['role'] == 'assistant' %}\n"
        "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
        "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
    ),
    keys={
        "bos": "<s>",
        "system": "<|system|>\n{instruction}</s>\n",
        "user": "<|user|>\n{instruction}</s>\n",
        "assistant": "<|assistant|>\n{instruction}</s>\n",
        "trailing_assistant": "<|assistant|>\n",
        "strip_whitespace": False,
    },
    eos="</s>",
    strips=False,
    begins=False,
    special_tokens=["<s>", "</s>"],
)

GEMMA = Family(
    name="gemma-it",
    source="google/gemma-7b-it and google/gemma-2-9b-it: tokenizer_config.json",
    published=(
        "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
        "{% endif %}{% for message in messages %}" + _ALTERNATE + "{% if (message['role'] == 'assistant') %}"
        "{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}"
        "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"
    ),
    keys={
        "bos": "<bos>",
        "system": "{instruction}\n\n",
        "user": "<start_of_turn>user\n{system}{instruction}<end_of_turn>\n",
        "assistant": "<start_of_turn>model\n{instruction}<end_of_turn>\n",
        "trailing_assistant": "<start_of_turn>model\n",
        "system_in_user": True,
    },
    eos="<eos>",
    system=False,
    special_tokens=["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
)

FAMILIES = [LLAMA_2, LLAMA_3, MISTRAL_V01, ZEPHYR, GEMMA]
