"""Tokenizers made by hand: a word is a token."""

from __future__ import annotations

import json
from pathlib import Path

WORDS = ["<s>", "</s>", "<unk>", "hello", "there", "user", "assistant", "a", "b"]


def write_tokenizer(folder: Path, chat_template: str | None = None, adds_bos: bool = True) -> Path:
    """A folder with a tokenizer whose BOS is `<s>`."""
    bos = [{"SpecialToken": {"id": "<s>", "type_id": 0}}] if adds_bos else []
    special = {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": index, "content": word, "special": True, "single_word": False, "lstrip": False, "rstrip": False}
            | {"normalized": False}
            for index, word in enumerate(WORDS[:3])
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [*bos, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [*bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": special,
        },
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: index for index, word in enumerate(WORDS)},
            "unk_token": "<unk>",
        },
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    if chat_template is not None:
        config["chat_template"] = chat_template
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
