"""Published chat templates and our formats give the same prompts, byte for byte and token for token."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
from families import FAMILIES, GEMMA, LLAMA_2, LLAMA_3, MISTRAL_V01, ZEPHYR, Family
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import content
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from rayllm.prompt import PromptFormat, compile_template, render

Messages = list[dict[str, Any]]

QUESTION: Messages = [{"role": "user", "content": "Hi"}]
TURNS: Messages = [*QUESTION, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Bye"}]
SYSTEM: Messages = [{"role": "system", "content": "Be brief."}]
SPACED: Messages = [{"role": "user", "content": " Hi\n"}]

GOLDENS = [
    (LLAMA_2, QUESTION, "<s>[INST] Hi [/INST]"),
    (LLAMA_2, SYSTEM + QUESTION, "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST]"),
    (
        LLAMA_2,
        SYSTEM + TURNS,
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello! </s><s>[INST] Bye [/INST]",
    ),
    (LLAMA_2, SPACED, "<s>[INST] Hi [/INST]"),
    (
        LLAMA_3,
        SYSTEM + QUESTION,
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    (
        LLAMA_3,
        TURNS,
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    (MISTRAL_V01, QUESTION, "<s>[INST] Hi [/INST]"),
    (MISTRAL_V01, TURNS, "<s>[INST] Hi [/INST]Hello!</s> [INST] Bye [/INST]"),
    (MISTRAL_V01, SPACED, "<s>[INST]  Hi\n [/INST]"),
    (MISTRAL_V01, SYSTEM + TURNS, "<s>[INST] Be brief.\n\nHi [/INST]Hello!</s> [INST] Bye [/INST]"),
    (ZEPHYR, SYSTEM + QUESTION, "<s><|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\n"),
    (ZEPHYR, TURNS, "<s><|user|>\nHi</s>\n<|assistant|>\nHello!</s>\n<|user|>\nBye</s>\n<|assistant|>\n"),
    (GEMMA, QUESTION, "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"),
    (
        GEMMA,
        SYSTEM + TURNS,
        "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n"
        "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
    ),
]

by_name = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@pytest.mark.parametrize(("family", "chat", "prompt"), GOLDENS)
def test_golden_prompts(family: Family, chat: Messages, prompt: str) -> None:
    assert ours(family, chat) == prompt


@by_name
@settings(max_examples=50)
@given(data=st.data())
def test_the_published_template_gives_the_same_bytes(family: Family, data: st.DataObject) -> None:
    chat = data.draw(alternating(family))

    assert ours(family, chat) == theirs(family, chat)


@by_name
def test_the_published_template_gives_the_same_tokens_and_one_bos(family: Family) -> None:
    for chat in (QUESTION, TURNS, *([SYSTEM + TURNS] if family.system else [])):
        encode = tokenizer(family).encode
        ids = encode(ours(family, chat), add_special_tokens=False).ids

        assert ids == encode(theirs(family, chat), add_special_tokens=False).ids
        # Llama 2 was trained with a BOS before every turn of the user.
        turns = sum(message["role"] == "user" for message in chat) if family is LLAMA_2 else 1
        assert ids.count(tokenizer(family).token_to_id(family.bos)) == turns


@by_name
def test_there_is_one_bos_also_where_the_tokenizer_adds_its_own(family: Family) -> None:
    encode = tokenizer(family).encode

    with_its_own = encode(ours(family, TURNS, omit_bos=True), add_special_tokens=True)

    assert with_its_own.ids == encode(ours(family, TURNS), add_special_tokens=False).ids


@by_name
def test_the_tokenizers_bos_stands_in_for_an_empty_one(family: Family) -> None:
    fmt = PromptFormat(**(family.keys | {"bos": ""}))

    assert render(compile_template(fmt, bos=family.bos), TURNS) == ours(family, TURNS)
    assert render(compile_template(fmt), TURNS) == ours(family, TURNS, omit_bos=True)


def ours(family: Family, chat: Messages, **variables: Any) -> str:
    return render(compile_template(PromptFormat(**family.keys)), chat, **variables)


def theirs(family: Family, chat: Messages) -> str:
    published = render(family.published, chat, bos_token=family.bos, eos_token=family.eos)
    return published if family.begins else family.bos + published


@st.composite
def alternating(draw: st.DrawFn, family: Family) -> Messages:
    """A conversation the published template accepts, ending with the user.

    Where the published template strips, it strips less than we do within a system message and more around an empty
    question after one, so these two are given stripped and not empty.
    """
    count = 2 * draw(st.integers(0, 2)) + 1
    chat = [{"role": "assistant" if index % 2 else "user", "content": draw(content)} for index in range(count)]
    if family.system and draw(st.booleans()):
        # An empty system message is rendered there and is nothing here.
        chat.insert(0, {"role": "system", "content": "x" + draw(content).strip() + "."})
        if family.strips:
            chat[1]["content"] = chat[1]["content"].strip() or "?"
    return chat


@lru_cache
def tokenizer(family: Family) -> Tokenizer:
    """A small byte-level BPE tokenizer with the family's special tokens, that begins with BOS when asked for them."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=family.special_tokens, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([family.published, *(prompt for _, _, prompt in GOLDENS)], trainer)
    made.post_processor = processors.TemplateProcessing(
        single=f"{family.bos} $A", special_tokens=[(family.bos, made.token_to_id(family.bos))]
    )
    return made
