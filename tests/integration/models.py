"""Tiny models of every kind that the engine serves, made in seconds on the spot.

Each function fills a folder that vLLM loads as it would a downloaded model, and returns it. Weights are the demo's or
random from one seed, so answers mean nothing and are the same each time. Sizes are the smallest that vLLM's CPU
kernels take: attention wants heads of at least 32, and the tests want start-up to be all import and no load.
An embedder needs no function: the demo's own weights with `runner: pooling` and `convert: embed` are one.
"""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    AddedToken,
    AutoTokenizer,
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)
from transformers.models.whisper.tokenization_whisper import LANGUAGES

WEIGHTS = Path(__file__).parents[2] / "models" / "rayllm-demo" / "weights"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
COLOURS = {"red": " France", "blue": " Germany", "green": " Japan"}
LABELS = ("weather", "travel", "food")
# The demo's prompt format, with images where they stand in the message.
CHAT_TEMPLATE = """{{ bos_token }}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content %}{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}
{%- endif %}{{ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def make_classifier(folder: Path) -> Path:
    """The demo's body under a random head of three named labels."""
    return _with_head(folder, {str(number): label for number, label in enumerate(LABELS)})


def make_reranker(folder: Path) -> Path:
    """The demo's body under a random head of one label, which is what vLLM takes for a cross-encoder."""
    return _with_head(folder, {"0": "LABEL_0"})


def _with_head(folder: Path, labels: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = json.loads((WEIGHTS / "config.json").read_text())
    config |= {
        "architectures": ["LlamaForSequenceClassification"],
        "id2label": labels,
        "label2id": {label: int(number) for number, label in labels.items()},
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    for name in TOKENIZER:
        shutil.copy(WEIGHTS / name, folder)
    weights = load_file(WEIGHTS / "model.safetensors")
    random = torch.Generator().manual_seed(0)
    head = torch.randn(len(labels), config["hidden_size"], generator=random) / config["hidden_size"] ** 0.5
    weights["score.weight"] = head.to(torch.bfloat16)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def make_guard(folder: Path, words: tuple[str, ...], unsafe: str) -> Path:
    """A model that writes `unsafe` if its prompt has one of some words, and `safe` otherwise.

    It attends to all tokens alike, so that it sees whether a word was among them. What comes next depends on that only
    after `END`, with which its chat template ends; after the answer comes the end.
    """
    tokenizer, body = _bag_of_words(folder, words, ["safe", unsafe])
    end, safe, unsafe_token = tokenizer.convert_tokens_to_ids([END, "safe", unsafe])
    marks = {end: 2, safe: 3, unsafe_token: 4}
    model = LlamaForCausalLM(body).to(torch.bfloat16)
    _attend_to_all(model.model, tokenizer.convert_tokens_to_ids(list(words)), marks)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.weight[safe, marks[end]] = 1
        model.lm_head.weight[unsafe_token, _SEEN] = 1
        for answer in (safe, unsafe_token):
            # More than any number of words.
            model.lm_head.weight[tokenizer.eos_token_id, marks[answer]] = 1e6
    template = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}" + END
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


def make_guard_classifier(folder: Path, words: tuple[str, ...], label: str) -> Path:
    """A classifier that finds a text to be `label` if it has one of some words, and `safe` otherwise."""
    tokenizer, body = _bag_of_words(folder, words, [])
    body.id2label, body.label2id = {0: "safe", 1: label}, {"safe": 0, label: 1}
    model = LlamaForSequenceClassification(body).to(torch.bfloat16)
    _attend_to_all(model.model, tokenizer.convert_tokens_to_ids(list(words)), {})
    with torch.no_grad():
        model.score.weight.zero_()
        model.score.weight[0, _CONSTANT] = model.score.weight[1, _SEEN] = 1
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder


END = "<|im_start|>"
# Dimensions: 1 for each token; 1 for the words that are looked for; how often these have been seen.
_CONSTANT, _WORD, _SEEN = 0, 1, 8
_SHARPNESS = 1000.0


def _one_layer(tokenizer: Any, length: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=length,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        dtype="bfloat16",
    )


def _bag_of_words(folder: Path, words: tuple[str, ...], answers: list[str]) -> tuple[Any, LlamaConfig]:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    tokenizer.add_tokens([*words, *answers])
    config = _one_layer(tokenizer, 2048)
    return tokenizer, config


def _attend_to_all(body: Any, words: list[int], marks: dict[int, int]) -> None:
    """Set the weights: no query and no key, so that every token counts alike, and nothing but what is looked for."""
    with torch.no_grad():
        for name, parameter in body.named_parameters():
            if "norm" not in name:
                parameter.zero_()
        embedding, attention = body.embed_tokens.weight, body.layers[0].self_attn
        embedding[:, _CONSTANT] = 1
        embedding[words, _WORD] = 1
        for token, dimension in marks.items():
            embedding[token, dimension] = 1
        attention.v_proj.weight[0, _WORD] = 1
        attention.o_proj.weight[_SEEN, 0] = _SHARPNESS


def make_vision(folder: Path) -> Path:
    """An Idefics3: a random vision tower before the demo's body, made to see `COLOURS` as the names of countries.

    So an answer proves what was seen: the capital of a red image is Paris. Text is answered as by the demo.
    It is the smallest that vLLM imports without torchvision, which cannot stand beside a CPU torch: LLaVA, Qwen-VL,
    InternVL, Gemma 3 and Pixtral all ask for it. An image is 64 pixels at its longest edge, in tiles of 32 and the
    whole once more, each of which is one token: 2 by 2 patches of 16, shuffled into one. It must be more than one
    tile, because transformers 5.23 counts an image of one as none, which ends the engine.
    """
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    tiles = [f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)]
    tokenizer.add_special_tokens({"additional_special_tokens": ["<global-img>", *tiles]})
    processor = Idefics3Processor(
        Idefics3ImageProcessorPil(size={"longest_edge": 64}, max_image_size={"longest_edge": 32}),
        tokenizer,
        image_seq_len=1,
        chat_template=CHAT_TEMPLATE,
    )
    demo = LlamaForCausalLM.from_pretrained(WEIGHTS, dtype=torch.bfloat16)
    # Whole blocks of rows, as the engine pads them. The new ones, which are marks around images, say nothing.
    known = demo.config.vocab_size
    demo.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=64, mean_resizing=False)
    demo.model.embed_tokens.weight.data[known:] = 0
    config = Idefics3Config(
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 16,
        },
        text_config=demo.config,
        image_token_id=processor.image_token_id,
        scale_factor=2,
        tie_word_embeddings=True,
    )
    model = Idefics3ForConditionalGeneration(config).float()
    model.model.text_model.load_state_dict(demo.model.state_dict())
    with torch.no_grad():
        # What the text gets of a picture is one linear map of what the tower sees: solve it.
        seen = torch.stack([_seen(model, processor, colour) for colour in COLOURS])
        named = torch.stack([demo.model.embed_tokens.weight[tokenizer.encode(name)[-1]] for name in COLOURS.values()])
        model.model.connector.modality_projection.proj.weight.copy_((torch.linalg.pinv(seen) @ named.float()).T)
    model.generation_config = demo.generation_config
    model.to(torch.bfloat16)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _seen(model: Idefics3ForConditionalGeneration, processor: Idefics3Processor, colour: str) -> torch.Tensor:
    # What the connector is given of one tile of a colour.
    pixels = processor(images=[Image.new("RGB", (64, 64), colour)], return_tensors="pt")["pixel_values"][0, :1]
    patches = model.model.vision_model(pixel_values=pixels).last_hidden_state
    return model.model.connector.pixel_shuffle(patches, 2).flatten()


def make_whisper(folder: Path) -> Path:
    """A random Whisper of one layer a side, with the demo's words and Whisper's own special tokens.

    All languages are there because the engine detects one among all it knows. Its window is 5 s instead of 30, so that
    a test's audio of 6 s is cut into chunks, and an answer ends after 64 tokens, because a random model never does.
    The engine decodes audio with `soundfile` and brings it to 16 kHz with `av`: without both it starts, and calls
    every file unsupported; with `av` alone it takes stereo of 16 kHz for mono of twice the length.
    """
    torch.manual_seed(0)
    words = json.loads((WEIGHTS / "tokenizer.json").read_text())["model"]
    tokenizer = WhisperTokenizer(vocab=words["vocab"], merges=[tuple(pair) for pair in words["merges"]])
    names = ["startoftranscript", *LANGUAGES, "translate", "transcribe", "startoflm", "startofprev", "nospeech"]
    tokenizer.add_special_tokens({"additional_special_tokens": [f"<|{name}|>" for name in [*names, "notimestamps"]]})
    tokenizer.add_tokens([f"<|{step * 0.02:.2f}|>" for step in range(1501)])
    start, end = (tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("startoftranscript", "endoftext"))
    config = WhisperConfig(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        d_model=64,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=250,
        max_target_positions=64,
        init_std=0.2,
        decoder_start_token_id=start,
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        begin_suppress_tokens=None,
    )
    model = WhisperForConditionalGeneration(config).to(torch.bfloat16)
    # Rows of timestamps as inputs are of outputs too: small ones are never the likeliest, so that text is words.
    model.model.decoder.embed_tokens.weight.data[len(tokenizer) - 1501 :] *= 0.1
    model.save_pretrained(folder)
    WhisperProcessor(WhisperFeatureExtractor(chunk_length=5), tokenizer).save_pretrained(folder)
    return folder


# What the scripted model writes after the last word of a question. Each token tells the next one, so none comes twice.
SCRIPTS = {
    "<speaks>": ["The capital", " is", " Paris.", " It is large."],
    "<thinks>": ["<think>", *(f"{number}, " for number in range(20)), "</think>", "So", " be it."],
    # Until a budget ends it.
    "<ponders>": ["hm, ", "hm, "],
    "<calls>": ["Let me look.", "<tool_call>", '{"name": "look", ', '"arguments": {"place": "Paris"}}', "</tool_call>"],
    "<calls-two>": [
        '<tool_call>\n{"name": "look", "arguments": {"place"',
        ': "Rome"}}\n</tool_call>\n',
        '<tool_call>{"name": "look", "arguments": {"place"',
        ': "Oslo"}}</tool_call>',
    ],
}
SCRIPTED_TEMPLATE = """
{%- for message in messages %}<|im_start|>{{ message.role + '\\n' }}
{%- if message.reasoning %}<think>{{ message.reasoning }}</think>{% endif %}{{ message.content or '' }}
{%- for call in message.tool_calls or () %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- for tool in tools or () %}{{ tool | tojson }}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{%- set word = messages[-1].content.split()[-1] %}
{%- if enable_thinking is defined and not enable_thinking %}<think></think>{{ word if word != "<thinks>" }}
{%- else %}{{ "<think>" if word == "<ponders>" }}{{ word }}{% endif %}
{%- endif %}"""


def make_scripted(folder: Path) -> Path:
    """A model that writes `SCRIPTS`, with the template of a model whose reasoning can be switched off."""
    tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)
    lines = [[start, *tokens] for start, tokens in SCRIPTS.items()]
    tokenizer.add_tokens([AddedToken(token, normalized=False) for line in lines for token in line])
    ids = [tokenizer.convert_tokens_to_ids(line) for line in lines]
    ends = [line[-1] for line in ids if line[-1] != line[-2]]
    config = _one_layer(tokenizer, 4096)
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.zero_()
        steps = [*(step for line in ids for step in pairwise(line)), *((end, tokenizer.eos_token_id) for end in ends)]
        for dimension, (token, following) in enumerate(steps):
            model.model.embed_tokens.weight[token, dimension] = 1
            model.lm_head.weight[following, dimension] = 10
    tokenizer.chat_template = SCRIPTED_TEMPLATE
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    return folder
