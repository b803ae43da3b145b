"""Prompts and tokens without an engine: on the demo model, and with tokenizers made by hand."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rayllm.batch.processors.kinds import model_config
from rayllm.batch.rows import ERROR, Row
from rayllm.batch.stages.prompter import Prompter
from rayllm.batch.stages.text import ChatTemplateStage, DetokenizeStage, TokenizeStage
from rayllm.config import ModelConfig, model_from
from rayllm.core.errors import ConfigError, SourceError
from tests.unit.batch.stages.tokenizers import WORDS, write_tokenizer

DEMO = Path(__file__).parents[4] / "models/rayllm-demo.yaml"
BOS = "<|begin_of_text|>"
HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
OPEN = "<|im_start|>assistant\n"


def user(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n"


@pytest.fixture(scope="module")
def demo() -> ModelConfig:
    return model_config(DEMO)


@pytest.fixture(scope="module")
def chat(demo: ModelConfig) -> ChatTemplateStage:
    return ChatTemplateStage(demo)


@pytest.fixture(scope="module")
def tokenize(demo: ModelConfig) -> TokenizeStage:
    return TokenizeStage(demo)


@pytest.fixture(scope="module")
def detokenize(demo: ModelConfig) -> DetokenizeStage:
    return DetokenizeStage(demo)


def prompt(stage: ChatTemplateStage, messages: Any, **more: Any) -> str:
    (row,) = stage([{"messages": messages, **more}])
    assert ERROR not in row, row[ERROR]
    assert row["is_rendered"] is True
    assert row["messages"] is messages
    return str(row["prompt"])


def fault(stage: Any, row: Row) -> str:
    """Why a row fails; it keeps what it had."""
    (answer,) = stage([row])
    assert row.items() <= answer.items()
    return str(answer[ERROR])


def model(folder: Path, **keys: Any) -> ModelConfig:
    """A model with the tokenizer in `folder`."""
    loading = {"model_id": "m", "model_source": {"path": str(folder)}}
    return model_from({"model_loading_config": loading, **keys}, "m", (folder,))


# Messages of the demo, which has a `prompt_format`.


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ("hi", user("hi")),
        (HI, user("hi")),
        (np.array(HI, dtype=object), user("hi")),
        ([{"role": "system", "content": "be"}, *HI], "<|im_start|>system\nbe<|im_end|>\n" + user("hi")),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], user("a\nb")),
        ([{"role": "user", "content": ["a", {"text": "b"}]}], user("a\nb")),
        ([{"role": "user", "content": [{"type": "text", "text": ""}, {"type": "input_text", "text": "b"}]}], user("b")),
        (
            [*HI, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, *HI],
            user("hi") + "<|im_start|>assistant\nno<|im_end|>\n" + user("hi"),
        ),
        # As the columns of a dataset have them: every key, null where a message lacks it.
        (
            [{"role": "user", "content": [{"type": "text", "text": "a", "image_url": None}], "tool_calls": None}],
            user("a"),
        ),
    ],
)
def test_messages_become_prompts(chat: ChatTemplateStage, messages: Any, text: str) -> None:
    assert prompt(chat, messages) == BOS + text + OPEN


def test_tools_and_their_calls_are_written(chat: ChatTemplateStage) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "1"},
    ]
    text = prompt(chat, messages, tools=TOOLS)
    assert '<tools>[{"type": "function", "function": {"name": "add"' in text
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' in text
    assert "<tool_response>2</tool_response>" in text
    assert "<tools>" not in prompt(chat, HI, tools=None)


def test_an_answer_may_be_continued_or_left_closed(chat: ChatTemplateStage) -> None:
    messages = [*HI, {"role": "assistant", "content": "Well,"}]
    assert prompt(chat, messages, continue_final_message=True).endswith(OPEN + "Well,")
    assert prompt(chat, HI, add_generation_prompt=False) == BOS + user("hi")
    assert prompt(chat, HI, add_generation_prompt=None, continue_final_message=None).endswith(OPEN)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], "`messages` must be a text, or a list of messages that is not empty."),
        (7, "`messages` must be a text, or a list of messages that is not empty."),
        (["hi"], "messages: A message must be an object with a role and a content, not str."),
        ([{"role": "wizard", "content": "hi"}], "messages: The role 'wizard' is not supported"),
        ([{"role": "user", "content": {"type": "text", "text": "hi"}}], "`content` must be a text or a list of parts"),
        ([{"role": "user", "content": 7}], "`content` must be a text or a list of parts, not int."),
        ([{"role": "user", "content": [7]}], "a part of the content must be a mapping, not int."),
        ([{"role": "user", "content": [{"type": "text", "text": 7}]}], "the text of a part must be a string, not int."),
        ([{"role": "user", "content": [{"type": "audio"}]}], "must be a text or an image, not 'audio'."),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}],
            "the chat template accepts only text",
        ),
    ],
)
def test_wrong_messages_are_their_rows_fault(chat: ChatTemplateStage, messages: Any, expected: str) -> None:
    assert expected in fault(chat, {"messages": messages, "x": 1})


def test_rows_without_messages_are_left_alone(chat: ChatTemplateStage) -> None:
    rows = [{"prompt": "a"}, {"messages": None, "prompt_token_ids": [1]}]
    assert chat(rows) == rows


# Tokens.


def test_a_rendered_prompt_is_not_changed(tokenize: TokenizeStage, chat: ChatTemplateStage) -> None:
    (row,) = tokenize(chat([{"messages": HI}]))
    tokens = row["prompt_token_ids"]
    assert tokens.count(0) == 1
    assert tokens[:2] == [0, 1]


@pytest.mark.parametrize("text", ["hi", f"{BOS}hi", f"{BOS}{BOS}hi"])
def test_a_prompt_has_one_bos(tokenize: TokenizeStage, text: str) -> None:
    assert tokenize([{"prompt": text}]) == [{"prompt": text, "prompt_token_ids": [0, 509]}]


def test_rows_that_need_no_tokens_are_left_alone(tokenize: TokenizeStage) -> None:
    rows: list[Row] = [{"prompt_token_ids": [5], "prompt": "hi"}, {"prompt": "<image> hi", "images": [b"x"]}, {}]
    assert tokenize(rows) == rows


def test_a_prompt_must_be_a_text(tokenize: TokenizeStage) -> None:
    assert fault(tokenize, {"prompt": ["hi"]}) == "`prompt` must be a text, not list."


# Texts.


def test_tokens_become_text(detokenize: DetokenizeStage) -> None:
    (row,) = detokenize([{"generated_tokens": [509, 2], "generated_text": None, "finish_reason": "length", "x": 1}])
    assert (row["generated_text"], row["x"]) == ("hi", 1)


def test_the_engines_text_stands(detokenize: DetokenizeStage) -> None:
    rows = [{"generated_tokens": [509], "generated_text": ""}, {"generated_tokens": [509], "generated_text": "h"}]
    assert detokenize(rows) == rows


def test_each_choice_has_its_text(detokenize: DetokenizeStage) -> None:
    choices = [{"generated_tokens": [509]}, {"generated_tokens": [509, 509]}]
    (row,) = detokenize([{"generated_tokens": [509], "choices": choices}])
    assert [choice["generated_text"] for choice in row["choices"]] == ["hi", "hihi"]
    assert "generated_text" not in choices[0]


@pytest.mark.parametrize(
    ("reason", "sampling", "text"),
    [
        ("length", {}, "hihi"),
        ("stop", None, "hi"),
        ("stop", {"include_stop_str_in_output": True}, "hihi"),
    ],
)
def test_the_token_that_ends_an_answer_is_no_part_of_it(
    detokenize: DetokenizeStage, reason: str, sampling: Any, text: str
) -> None:
    """As the engine has it: a row may name an ordinary word in `stop_token_ids`."""
    row = {"generated_tokens": [509, 509], "finish_reason": reason, "sampling_params": sampling}
    assert detokenize([row])[0]["generated_text"] == text


def test_special_tokens_are_written_where_they_are_asked_for(detokenize: DetokenizeStage) -> None:
    row = {"generated_tokens": [0, 509], "sampling_params": {"skip_special_tokens": False}}
    assert detokenize([row])[0]["generated_text"] == f"{BOS}hi"


# Adapters.


@pytest.fixture
def adapters(tmp_path: Path, cache_folder: Path) -> ModelConfig:
    """The demo with an adapter that has settings of its own, and one that is broken."""
    for name in ("pirate", "quaint", "wrong"):
        shutil.copytree(DEMO.parent / "rayllm-demo/adapters/pirate", tmp_path / name)
    own = {"bos": "", "system": "{instruction}", "user": "U:{instruction} ", "assistant": "A:{instruction} "}
    (tmp_path / "quaint/rayllm.yaml").write_text(yaml.safe_dump({"prompt_format": {**own, "trailing_assistant": "A:"}}))
    (tmp_path / "wrong/rayllm.yaml").write_text("prompt_fromat: {}\n")
    raw = yaml.safe_load(DEMO.read_text()) | {"lora_config": {"dynamic_lora_loading_path": str(tmp_path)}}
    return model_from(raw, "demo", (DEMO.parent,))


def test_an_adapter_is_prompted_as_it_wants(adapters: ModelConfig) -> None:
    chat = ChatTemplateStage(adapters)
    base = prompt(chat, "hi")
    assert prompt(chat, "hi", model="rayllm-demo") == prompt(chat, "hi", model="rayllm-demo:pirate") == base
    assert prompt(chat, "hi", model="rayllm-demo:quaint") == f"{BOS}U:hi A:"
    assert prompt(chat, "hi", model=None) == base


def test_an_adapters_prompt_has_one_bos_too(adapters: ModelConfig) -> None:
    tokenize = TokenizeStage(adapters)
    for name in ("pirate", "quaint"):
        (row,) = tokenize([{"prompt": f"{BOS}hi", "model": f"rayllm-demo:{name}"}])
        assert row["prompt_token_ids"] == [0, 509]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rayllm-demo:none", "The model `rayllm-demo` has no adapter `none`."),
        ("other", "This job has no model `other`; it runs `rayllm-demo`."),
        ("rayllm-demo:wrong", "The adapter `rayllm-demo:wrong` cannot be used: .*prompt_fromat"),
    ],
)
def test_an_adapter_that_cannot_be_had(adapters: ModelConfig, name: str, expected: str) -> None:
    good = {"messages": "hi"}
    bad, other = ChatTemplateStage(adapters)([{"messages": "hi", "model": name}, good])
    assert re.search(expected, bad[ERROR])
    assert ERROR not in other
    assert re.search(expected, fault(TokenizeStage(adapters), {"prompt": "hi", "model": name}))


# Templates of models.


STRINGS = "{% for m in messages %}{{ m['role'] + ' ' + m['content'] + ' ' }}{% endfor %}"
PARTS = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %} <image>{% else %} {{ part['text'] }}{% endif %}{% endfor %}{% endfor %}"
)
BOTH = (
    "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for part in m['content'] %}{{ '<' ~ part['type'] ~ '>' }}{{ part['text'] }}{% endfor %}"
    "{% endif %}{% endfor %}"
)
IMAGE = [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "hello"}]


def rendered(folder: Path, template: str | None, content: Any, **keys: Any) -> Row:
    stage = ChatTemplateStage(model(write_tokenizer(folder, template), **keys))
    (row,) = stage([{"messages": [{"role": "user", "content": content}]}])
    return row


@pytest.mark.parametrize(
    ("template", "content", "text"),
    [
        (STRINGS, "hello", "user hello "),
        (STRINGS, ["hello", {"type": "text", "text": "there"}], "user hello\nthere "),
        (PARTS, "hello", "<s>user hello"),
        (PARTS, IMAGE, "<s>user <image> hello"),
        (BOTH, "hello", "<text>hello"),
        (BOTH, IMAGE, "<image><text>hello"),
        ("{{ messages[0]['content'] | trim }}", ["hello"], "hello"),
        ("{{ messages[0]['content'] | tojson }}", ["hello"], '"hello"'),
    ],
)
def test_a_template_gets_content_in_its_own_form(tmp_path: Path, template: str, content: Any, text: str) -> None:
    assert rendered(tmp_path, template, content)["prompt"] == text


def test_images_need_a_template_with_parts(tmp_path: Path) -> None:
    assert "the chat template accepts only text" in rendered(tmp_path, STRINGS, IMAGE)[ERROR]


def test_the_configuration_may_choose_the_content_format(tmp_path: Path) -> None:
    said = {"engine_kwargs": {"chat_template_content_format": "string"}}
    assert rendered(tmp_path, BOTH, "hello", **said)["prompt"] == "hello"
    said = {"engine_kwargs": {"chat_template_content_format": "openai"}}
    assert rendered(tmp_path, BOTH, "hello", **said)["prompt"] == "<text>hello"


def test_a_configured_template_goes_before_the_models_own(tmp_path: Path) -> None:
    assert rendered(tmp_path, STRINGS, "hello", chat_template="{{ messages|length }}")["prompt"] == "1"


def test_a_model_without_a_template_accepts_only_prompts(tmp_path: Path) -> None:
    expected = rendered(tmp_path, None, "hello")[ERROR]
    assert expected.startswith("the model has no chat template; give rows a `prompt` instead of `messages`")
    (row,) = TokenizeStage(model(tmp_path))([{"prompt": "hello"}])
    assert row["prompt_token_ids"] == [0, WORDS.index("hello")]


@pytest.mark.parametrize("template", ["{{ raise_exception('users only') }}", "{{ 1 / 0 }}", "{% if %}"])
def test_a_template_may_refuse(tmp_path: Path, template: str) -> None:
    assert rendered(tmp_path, template, "hello")[ERROR].startswith("messages: ")


def test_variables_of_a_template(tmp_path: Path) -> None:
    template = "{{ style }} {{ mood }} {{ eos_token }}"
    stage = ChatTemplateStage(
        model(write_tokenizer(tmp_path, template), chat_template_kwargs={"style": "short", "mood": "good"})
    )
    assert prompt(stage, "hello") == "short good </s>"
    assert prompt(stage, "hello", chat_template_kwargs={"mood": "bad"}) == "short bad </s>"
    assert prompt(stage, "hello", chat_template_kwargs=None) == "short good </s>"


def test_templates_for_requests_with_and_without_tools(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path)
    (folder / "additional_chat_templates").mkdir()
    (folder / "chat_template.jinja").write_text("plain")
    (folder / "additional_chat_templates/tool_use.jinja").write_text("with tools")
    stage = ChatTemplateStage(model(folder))
    assert (prompt(stage, "hello"), prompt(stage, "hello", tools=TOOLS)) == ("plain", "with tools")


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("text", ["hello", "<s>hello"])
def test_a_tokenizer_that_adds_no_bos_gets_none_from_us(tmp_path: Path, adds_bos: bool, text: str) -> None:
    stage = TokenizeStage(model(write_tokenizer(tmp_path, adds_bos=adds_bos)))
    (row,) = stage([{"prompt": text}])
    hello = WORDS.index("hello")
    assert row["prompt_token_ids"] == ([0, hello] if adds_bos or text.startswith("<s>") else [hello])


def test_a_tokenizer_may_lie_elsewhere(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "own", "own")
    loading = {"model_id": "m", "model_source": "/nowhere", "tokenizer_source": str(tmp_path / "own")}
    assert prompt(ChatTemplateStage(model_from({"model_loading_config": loading}, "m", ())), "hello") == "own"


def test_a_tokenizer_that_cannot_be_had(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="nowhere is not a folder on this node"):
        Prompter(model(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="model `m`: the tokenizer cannot be read: "):
        Prompter(model(tmp_path))
    with pytest.raises(ConfigError, match=r"a tokenizer of mode `mistral` only works inside the engine; .*need_tok"):
        Prompter(model(tmp_path, engine_kwargs={"tokenizer_mode": "mistral"}))
