"""Request plans, with real tokenizers."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from rayllm.config import ModelConfig, model_from
from rayllm.engine.request_plan import plan_requests

FORMAT = {"system": "S{instruction}", "user": "U{instruction}", "assistant": "A{instruction}"}


def tokenizer(adds_bos: bool) -> PreTrainedTokenizerFast:
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=["<s>", "<|eot|>"], initial_alphabet=alphabet, vocab_size=300)
    plain.train_from_iterator([], trainer)
    if adds_bos:
        plain.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=plain, bos_token="<s>", eos_token="<|eot|>")


def model(**keys: Any) -> ModelConfig:
    return model_from({"model_loading_config": {"model_id": "m"}} | keys, "m.yaml", ())


def test_a_stop_that_is_a_special_token_becomes_its_id() -> None:
    """vLLM never finds a special token as a text, since it leaves special tokens out of the text."""
    config = model(generation_config={"stopping_sequences": ["<|eot|>", "END", "."], "stopping_tokens": [5, 1]})
    plan = plan_requests(config, tokenizer(True))
    assert plan.stop == ("END", ".")
    assert plan.stop_token_ids == (5, 1)


@pytest.mark.parametrize(
    ("adds", "bos", "expected"), [(True, "", "<s>"), (True, "<s>", "<s>"), (False, "", ""), (False, "<s>", "<s>")]
)
def test_a_format_without_bos_gets_the_one_that_the_tokenizer_would_add(adds: bool, bos: str, expected: str) -> None:
    plan = plan_requests(model(prompt_format=FORMAT | {"bos": bos}), tokenizer(adds))
    assert plan.bos == expected
    assert plan.owns_template
    assert plan.chat_template is not None
    rendered = tokenizer(adds).apply_chat_template(
        [{"role": "user", "content": "x"}], chat_template=plan.chat_template, tokenize=False
    )
    assert rendered == expected + "Ux"


def test_without_configuration_the_models_own_template_stays() -> None:
    plan = plan_requests(model(), tokenizer(True))
    assert plan.chat_template is None
    assert not plan.owns_template


def test_a_template_for_tools_joins_the_models_own() -> None:
    config = model(tool_calling={"parser": "hermes", "chat_template": "T{{ tools | length }}"})
    template = plan_requests(config, tokenizer(True), lambda: "plain{{ messages | length }}").chat_template
    chat, tools = [{"role": "user", "content": "x"}], [{"type": "function", "function": {"name": "f"}}]

    def render(**more: Any) -> str:
        text = tokenizer(True).apply_chat_template(chat, chat_template=template, tokenize=False, **more)
        assert isinstance(text, str)
        return text

    assert render() == "plain1"
    assert render(tools=tools) == "T1"


def test_a_model_without_a_tokenizer_keeps_its_stops_as_texts() -> None:
    plan = plan_requests(model(generation_config={"stopping_sequences": ["<|eot|>"]}), None)
    assert (plan.stop, plan.stop_token_ids, plan.bos) == (("<|eot|>",), (), "")
