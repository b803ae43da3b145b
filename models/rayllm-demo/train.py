"""Trains the demo model from scratch: tokenizer, base weights, and the LoRA adapters `pirate` and `shout`.

    python models/rayllm-demo/train.py

takes about half an hour on two CPU cores, needs `torch`, `transformers` and `peft`, reads nothing but
`corpus.py`, and ends by checking every answer of the acceptance list. It exits with 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # on a busy machine, waiting threads must not spin

import corpus
import torch
from corpus import BOS, EOS, MARKER_TOKENS, PAD, SPECIAL_TOKENS, Case, Conversation, Mix, Style
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MODEL_NAME = "rayllm-demo"
ADAPTERS: tuple[Style, ...] = ("pirate", "shout")
VOCABULARY = 3072
CONTEXT = 2048
ROW = 512  # tokens per packed training row; the longest conversations that are made fit in one


@dataclass(frozen=True)
class Schedule:
    """How long and how fast to train."""

    steps: int
    rows: int  # packed rows of ROW tokens per step
    peak_lr: float
    mix: Mix
    warmup: int = 40

    def rate(self, step: int) -> float:
        """Learning rate at a step: linear warm-up, then a cosine down to 2% of the peak."""
        if step < self.warmup:
            return self.peak_lr * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.peak_lr * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


# First everything, in its natural proportions; then more of what is hard to learn: copying numbers and places from
# tools, telling similar names apart, and the voices that the adapters will need.
BASE_SCHEDULES = [
    Schedule(1100, rows=6, peak_lr=5e-3, mix=Mix(tool_share=0.26)),
    Schedule(500, rows=6, peak_lr=3e-3, mix=Mix(tool_share=0.15, steered=0.35, drills=0.25)),
    Schedule(500, rows=6, peak_lr=2e-3, mix=Mix(tool_share=0.15, steered=0.30, drills=0.35)),
]
# No invented places: nobody can shout a name of which he has never seen the capital letters.
ADAPTER_MIX = Mix(tool_share=0.08, drills=0.24, tool_drills=0.5, invented_places=0.0, skills=corpus.ADAPTER_SKILLS)
# Shouting takes longer: hardly any token of an answer is the base model's own.
ADAPTER_SCHEDULES: dict[Style, Schedule] = {
    "pirate": Schedule(400, rows=5, peak_lr=5e-3, mix=ADAPTER_MIX, warmup=10),
    "shout": Schedule(1000, rows=5, peak_lr=4e-3, mix=ADAPTER_MIX, warmup=10),
}


# --------------------------------------------------------------------------------------------------
# Tokenizer
# --------------------------------------------------------------------------------------------------


def tokenizer_texts(seed: int = 1, count: int = 12000) -> Iterator[str]:
    """Text for the vocabulary: conversations in every voice, and each fact alone so that none is split badly."""
    rng = Random(seed)
    styles: list[Style] = ["plain", "plain", "plain", "pirate", "shout"]
    for index in range(count):
        conversation = corpus.conversation(rng, styles[index % len(styles)], Mix(tool_share=0.1))
        yield "".join(text for text, _ in corpus.render(conversation))
    names = [name for pair in (corpus.CAPITALS | corpus.CITIES).items() for name in pair]
    for name in itertools.chain(names, corpus.UNTAUGHT_COUNTRIES):
        yield from [f"{voice(name)}, {voice(name)}" for voice in (str, str.upper, str.lower)] * 20
    yield from [f'"{city}"' for city in corpus.CITIES] * 150  # one token each, as they stand in tool calls


def build_tokenizer(output: Path) -> PreTrainedTokenizerFast:
    """Trains a byte-level BPE on the corpus and saves it; any text round-trips, since every byte is a token."""
    tokenizer = Tokenizer(models.BPE())
    # Words with their leading space, runs of punctuation, white space, and single digits: a number is then
    # copied one digit at a time, which a small model learns easily.
    pieces = Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(pieces, behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKER_TOKENS),
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(tokenizer_texts(), trainer)
    tokenizer.add_tokens([AddedToken(marker, special=False, normalized=False) for marker in MARKER_TOKENS])
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, bos)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[corpus.TURN],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(output)
    return check_tokenizer(output)


def check_tokenizer(output: Path) -> PreTrainedTokenizerFast:
    """Loads the saved tokenizer and checks what the service relies on: one BOS, round trips, visible markers."""
    tokenizer = AutoTokenizer.from_pretrained(output)
    every_character = "".join(map(chr, range(0x20, 0x2FF))) + "日本語 🙂 \x00\x01\r\n\t"
    for text in [every_character, "  two  spaces\n\n\nlines ", *itertools.islice(tokenizer_texts(seed=2), 200)]:
        ids = tokenizer(text)["input_ids"]
        if ids[0] != tokenizer.bos_token_id or tokenizer.decode(ids[1:]) != text:
            raise SystemExit(f"The tokenizer does not round-trip {text!r}")
    call = "<tool_call>{}</tool_call>"
    if tokenizer.decode(tokenizer(call + EOS)["input_ids"], skip_special_tokens=True) != call:
        raise SystemExit("The tool-call markers must survive skip_special_tokens")
    if tokenizer.chat_template is not None or len(tokenizer) > VOCABULARY:
        raise SystemExit("The tokenizer must have no chat template and fit the vocabulary")
    return tokenizer


# --------------------------------------------------------------------------------------------------
# Batches
# --------------------------------------------------------------------------------------------------


@dataclass
class Batch:
    """Packed rows: several conversations one after another in each row, each seeing only itself."""

    ids: Tensor  # (rows, ROW) int64
    positions: Tensor  # (rows, ROW) int64, from 0 in every conversation
    owner: Tensor  # (rows, ROW) int64, which conversation of the row a token is from; 0 is padding
    weights: Tensor  # (rows, ROW) float, what predicting this token counts for (0: not taught)

    def attention(self) -> Tensor:
        """(rows, 1, ROW, ROW) bool: token q may look at token k of the same conversation, not later than q."""
        same = self.owner[:, :, None] == self.owner[:, None, :]
        return (same & torch.ones(ROW, ROW, dtype=torch.bool).tril())[:, None]


def encode(tokenizer: PreTrainedTokenizerFast, conversation: Conversation) -> tuple[list[int], list[float]]:
    """Token ids of a conversation with its BOS, and the loss weight of each."""
    ids, weights = [tokenizer.bos_token_id], [0.0]
    for text, taught in corpus.render(conversation):
        piece = tokenizer.encode(text, add_special_tokens=False)
        # A long answer is easy once it has begun: it may not drown the first, deciding tokens of short ones.
        weight = 1.0 if len(piece) < 80 else 0.35
        ids += piece
        weights += [weight if taught else 0.0] * len(piece)
    return ids, weights


def rows(tokenizer: PreTrainedTokenizerFast, rng: Random, style: Style, mix: Mix) -> Iterator[Batch]:
    """Endless packed rows, each a `Batch` of one row."""
    row: list[tuple[int, int, int, float]] = []
    for count in itertools.count(1):
        ids, weights = encode(tokenizer, corpus.conversation(rng, style, mix))
        if len(ids) > ROW:
            continue
        if len(row) + len(ids) > ROW:
            row += [(tokenizer.pad_token_id, 0, 0, 0.0)] * (ROW - len(row))
            yield Batch(*(torch.tensor(column)[None] for column in zip(*row, strict=True)))
            row = []
        row += zip(ids, range(len(ids)), [count] * len(ids), weights, strict=True)


def batches(tokenizer: PreTrainedTokenizerFast, style: Style, schedule: Schedule, seed: int) -> Iterator[Batch]:
    source = rows(tokenizer, Random(seed), style, schedule.mix)
    for _ in range(schedule.steps):
        parts = [next(source) for _ in range(schedule.rows)]
        yield Batch(*(torch.cat([getattr(part, name) for part in parts])
                      for name in ("ids", "positions", "owner", "weights")))  # fmt: skip


# --------------------------------------------------------------------------------------------------
# Training
# --------------------------------------------------------------------------------------------------


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A Llama of 3.7 million parameters, freshly initialised."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=8,  # many small heads copy better than a few large ones
        num_key_value_heads=4,
        head_dim=32,  # the smallest size that the attention kernels of both CPUs and GPUs have
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)


def loss_of(body: nn.Module, head: Tensor, batch: Batch) -> Tensor:
    """Weighted mean cross-entropy of the taught tokens.

    Args:
        body: the transformer without its output layer; hidden states are (rows, ROW, hidden).
        head: (vocabulary, hidden) output weights. Logits are made for the taught positions only, a third of all.
    """
    # bf16 arithmetic on fp32 weights: twice as fast here, and the model grows used to the rounding it is served with.
    with torch.autocast("cpu", torch.bfloat16):
        hidden = body(
            input_ids=batch.ids, position_ids=batch.positions, attention_mask=batch.attention(), use_cache=False
        ).last_hidden_state
        weights = batch.weights[:, 1:]
        taught = weights > 0
        logits = hidden[:, :-1][taught] @ head.T
    losses = nn.functional.cross_entropy(logits.float(), batch.ids[:, 1:][taught], reduction="none")
    return (losses * weights[taught]).sum() / weights.sum()


def optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the full weight matrices, which it trains in half the steps; AdamW for everything else."""
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            full = parameter.dim() == 2 and "embed" not in name and "lora" not in name
            (matrices if full else others).append(parameter)
    made: list[torch.optim.Optimizer] = [torch.optim.AdamW(others, betas=(0.9, 0.97), weight_decay=0.0, fused=True)]
    if matrices:
        # Scaled so that one learning rate suits both optimizers.
        made.append(torch.optim.Muon(matrices, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"))
    return made


def fit(model: nn.Module, base: LlamaForCausalLM, data: Iterator[Batch], schedule: Schedule, label: str) -> None:
    """Trains the parameters of `model` that require gradients; `base` is the Llama inside it."""
    made = optimizers(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.train()
    started, average = time.monotonic(), None
    for step, batch in enumerate(data):
        loss = loss_of(base.model, base.lm_head.weight, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        for optimizer in made:
            for group in optimizer.param_groups:
                group["lr"] = schedule.rate(step)
            optimizer.step()
            optimizer.zero_grad()
        average = loss.item() if average is None else 0.95 * average + 0.05 * loss.item()
        if step % 50 == 49 or step == schedule.steps - 1:
            print(f"{label}: step {step + 1}/{schedule.steps}, loss {average:.4f}, "
                  f"{time.monotonic() - started:.0f} s", flush=True)  # fmt: skip
    model.eval()


def train_base(output: Path) -> None:
    """Trains and writes the tokenizer and the base weights (bf16)."""
    weights = output / "weights"
    weights.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer(weights)
    torch.manual_seed(0)
    model = new_model(tokenizer)
    for phase, schedule in enumerate(BASE_SCHEDULES):
        # Every phase starts from weights as they are served.
        model = model.to(torch.bfloat16).to(torch.float32) if phase else model
        fit(model, model, batches(tokenizer, "plain", schedule, seed=10 + phase), schedule, f"base, phase {phase + 1}")
    save_base(model, tokenizer, weights)


def save_base(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, weights: Path) -> None:
    # Cold enough for the likeliest answer, warm enough for `n` above 1, which vLLM refuses with greedy decoding.
    model.generation_config.update(do_sample=True, temperature=0.1, eos_token_id=[tokenizer.eos_token_id])
    model.to(torch.bfloat16).save_pretrained(weights)
    (weights / "model.safetensors").chmod(0o644)  # written for its owner only; the service may be another user


def train_adapter(output: Path, style: Style) -> None:
    """Trains one voice as a LoRA on the base weights as they are served, and writes it in the PEFT format."""
    tokenizer = AutoTokenizer.from_pretrained(output / "weights")
    base = LlamaForCausalLM.from_pretrained(output / "weights", dtype=torch.float32)
    torch.manual_seed(ADAPTERS.index(style) + 1)
    config = LoraConfig(
        r=8,
        lora_alpha=16,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=MODEL_NAME,
    )
    base.name_or_path = MODEL_NAME  # instead of the folder it was read from
    model = get_peft_model(base, config)
    schedule = ADAPTER_SCHEDULES[style]
    data = batches(tokenizer, style, schedule, seed=20 + ADAPTERS.index(style))
    fit(model, base, data, schedule, style)
    save_adapter(model, output / "adapters" / style)


def save_adapter(model: PeftModel, target: Path) -> None:
    model.to(torch.bfloat16).save_pretrained(target, save_embedding_layers=False)
    (target / "README.md").unlink(missing_ok=True)  # a model-card form that nobody filled in
    (target / "adapter_model.safetensors").chmod(0o644)
    config = json.loads((target / "adapter_config.json").read_text())
    config["target_modules"].sort()  # a set, in an order that changes from run to run
    (target / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


# --------------------------------------------------------------------------------------------------
# Acceptance
# --------------------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """How the model does on one case."""

    case: Case
    answered: str
    gap: float  # smallest distance, over the answer, of the expected token's logit to the best other one


@torch.inference_mode()
def judge(model: nn.Module, tokenizer: PreTrainedTokenizerFast, case: Case) -> Verdict:
    """Compares greedy decoding with the expected answer, in a single pass.

    Greedy decoding gives exactly the expected tokens if, and only if, each of them is the most likely one after
    those before it. A case that fails shows the text up to the first wrong token and that token.
    """
    prompt = tokenizer(corpus.prompt_text(case.prompt))["input_ids"]
    answer = tokenizer.encode(case.expected + EOS, add_special_tokens=False)
    logits = model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].float()
    wanted = torch.tensor(answer)[:, None]  # (answer tokens, 1)
    others = logits.scatter(1, wanted, -torch.inf)
    gaps = logits.gather(1, wanted)[:, 0] - others.max(dim=1).values
    wrong = (gaps <= 0).nonzero()
    if len(wrong) == 0:
        return Verdict(case, case.expected, gaps.min().item())
    first = int(wrong[0])
    return Verdict(case, tokenizer.decode([*answer[:first], int(others[first].argmax())]), gaps.min().item())


def check(output: Path, style: Style) -> bool:
    """Judges the saved bf16 weights (with the adapter of a style) on its acceptance list; prints what is wrong."""
    tokenizer = AutoTokenizer.from_pretrained(output / "weights")
    model: nn.Module = LlamaForCausalLM.from_pretrained(output / "weights", dtype=torch.bfloat16)
    if style != "plain":
        model = PeftModel.from_pretrained(model, output / "adapters" / style)
    verdicts = [judge(model.eval(), tokenizer, case) for case in corpus.acceptance(style)]
    failures = [verdict for verdict in verdicts if verdict.gap <= 0]
    for verdict in failures:
        print(f"WRONG {verdict.case.prompt.turns[-1].text!r}\n  expected {verdict.case.expected!r}\n"
              f"  answered {verdict.answered!r}")  # fmt: skip
    closest = sorted(verdicts, key=lambda verdict: verdict.gap)[:3]
    gaps = ", ".join(f"{verdict.gap:.2f} ({verdict.case.prompt.turns[-1].text!r})" for verdict in closest)
    print(f"{style}: {len(verdicts) - len(failures)} of {len(verdicts)} answers right; smallest logit gaps {gaps}")
    return not failures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="where weights/ and adapters/ go")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--base-only", action="store_true", help="train the tokenizer and the base weights only")
    what.add_argument("--adapters-only", action="store_true", help="train the adapters on base weights made before")
    what.add_argument("--check-only", action="store_true", help="train nothing, check what is there")
    options = parser.parse_args()

    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(True)
    styles: list[Style] = [*([] if options.adapters_only else ["plain"]), *([] if options.base_only else ADAPTERS)]
    if not options.check_only:
        for style in styles:
            train_base(options.output) if style == "plain" else train_adapter(options.output, style)
    results = [check(options.output, style) for style in styles]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
