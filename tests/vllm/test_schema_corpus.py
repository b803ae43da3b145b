"""JSON schemas that people have: each is enforced, or refused with a reason. The compilers are real."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from transformers import AutoTokenizer
from vllm.v1.structured_output.backend_types import StructuredOutputOptions

from rayllm.core.errors import RequestError
from rayllm.engine.structured_output.constraint import Constraint
from rayllm.engine.structured_output.gate import ConstraintGate, Options
from rayllm.engine.structured_output.limits import check_limits
from rayllm.engine.vllm.constraint_compiler import ConstraintCompiler
from rayllm.engine.vllm.grammar_backend import _joint_backend, backend_of
from tests.vllm.sampler import Sampler
from tests.vllm.schemas import collections

TOKENIZER = AutoTokenizer.from_pretrained(Path(__file__).parents[2] / "models" / "rayllm-demo" / "weights")
SCHEMAS = collections()
BEGIN, END = "<call>", "</call>"


class Compilers:
    """The gate and the engine's backend for one tokenizer."""

    def __init__(self, tokenizer: Any = TOKENIZER) -> None:
        size = len(tokenizer)
        options = SimpleNamespace(disable_any_whitespace=True, disable_additional_properties=False)
        model = SimpleNamespace(get_vocab_size=lambda: size, hf_config=SimpleNamespace(model_type="llama"))
        config: Any = SimpleNamespace(structured_outputs_config=options, model_config=model, speculative_config=None)
        compiler = ConstraintCompiler(SimpleNamespace(vllm_config=config, get_tokenizer=lambda: tokenizer))
        self.gate = ConstraintGate(backend_of, compiler.find_fault, None)
        self.backend = _joint_backend()(config, tokenizer=tokenizer, vocab_size=size)
        self.sampler = Sampler(tokenizer, size)

    def answers(self, kind: str, text: str, seeds: int) -> list[str]:
        """Answers drawn from a constraint; those that are not done after some hundred tokens are left out."""
        kind, text = asyncio.run(self.gate.prepare(kind, text, Options()))
        drawn = []
        for seed in range(seeds):
            grammar = self.backend.compile_grammar(StructuredOutputOptions[kind.upper()], text)
            tokens = self.sampler.sample(grammar, self.backend, seed, 400)
            drawn += [] if tokens is None else [TOKENIZER.decode(tokens)]
        return drawn


@pytest.fixture(scope="module")
def compilers() -> Compilers:
    return Compilers()


def check(schema: dict[str, Any], answer: str) -> None:
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator(schema).validate(json.loads(answer))


def drawn(compilers: Compilers, kind: str, text: str, schema: dict[str, Any], seeds: int) -> list[str] | None:
    """Answers to a constraint; None if it is refused, with a reason."""
    try:
        check_limits(Constraint("tools", "json", schema))
        return compilers.answers(kind, text, seeds)
    except RequestError as error:
        refusal = error
    # The keyword, the pattern or the place, not only that something is wrong.
    signs = ('["', "oneOf", " at ", "look-around", "regex", "$ref")
    assert any(sign in refusal.message for sign in signs), refusal.message
    return None


def test_answers_satisfy_their_schema_or_it_is_refused(compilers: Compilers) -> None:
    results = {name: drawn(compilers, "json", json.dumps(schema), schema, 2) for name, schema in SCHEMAS.items()}
    for name, answers in results.items():
        for answer in answers or ():
            check(SCHEMAS[name], answer)
    assert len(results) >= 200
    assert sum(bool(answers) for answers in results.values()) >= 150, [n for n, a in results.items() if a is None]


def test_tags_hold_answers_that_satisfy_their_schema_or_it_is_refused(compilers: Compilers) -> None:
    """Structural tags, which vLLM makes of tools, are compiled by xgrammar."""
    answered = 0
    for name, schema in SCHEMAS.items():
        content = {"type": "json_schema", "json_schema": schema}
        tag = {"type": "structural_tag", "format": {"type": "tag", "begin": BEGIN, "content": content, "end": END}}
        for answer in (answers := drawn(compilers, "structural_tag", json.dumps(tag), schema, 1) or []):
            assert answer.startswith(BEGIN), name
            assert answer.endswith(END), name
            check(schema, answer.removeprefix(BEGIN).removesuffix(END))
        answered += bool(answers)
    assert answered >= 130


def test_unnamed_properties_and_free_white_space_are_not_generated(compilers: Compilers) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    for answer in compilers.answers("json", json.dumps(schema), seeds=20):
        assert json.loads(answer).keys() <= {"a"}
        assert "  " not in answer
        assert "\n" not in answer


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("json", {"type": "object", "properties": {"a": {}}, "required": ["a"], "oneOf": [{}, {}]}, "oneOf"),
        ("json", {"type": "array", "uniqueItems": True}, "uniqueItems"),
        ("json", {"type": "string", "minLength": 9, "maxLength": 3}, "minLength (9) is greater than maxLength (3)"),
        ("json", {"type": "string", "pattern": "^(?!x)"}, "look-around"),
        ("json", {"$ref": "#"}, "cannot be compiled"),
        ("json", {"type": "object", "properties": {f"p{i}": {} for i in range(900)}}, "cannot be compiled"),
        ("regex", "(", "unclosed group"),
        ("regex", "(?=a)b", "look-around"),
        ("grammar", "start: (", "cannot be compiled"),
    ],
)
def test_what_is_not_enforced_is_named(compilers: Compilers, kind: str, text: Any, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        compilers.answers(kind, text if isinstance(text, str) else json.dumps(text), seeds=1)
    assert said in caught.value.message
    assert "<state>" not in caught.value.message
    assert len(caught.value.message) < 700


DOUBLED: dict[str, Any] = {"d0": {"type": "string"}}
for level in range(1, 26):
    part = {"$ref": f"#/$defs/d{level - 1}"}
    DOUBLED[f"d{level}"] = {"type": "object", "properties": {"a": part, "b": part}, "required": ["a"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^(([a-z]{1,9}){1,9}){1,9}$"},
        {"type": "array", "items": {"type": "integer"}, "maxItems": 50_000},
        {"$ref": "#/$defs/d25", "$defs": DOUBLED},
        {"enum": [f"value {number}" for number in range(20_000)]},
    ],
)
def test_what_used_to_explode_is_compiled(compilers: Compilers, schema: dict[str, Any]) -> None:
    compilers.answers("json", json.dumps(schema), seeds=1)


def test_an_answer_that_runs_into_a_limit_fails(compilers: Compilers) -> None:
    """guidance itself would allow the end of the text there."""
    schema = json.dumps({"type": "string", "pattern": "^(([a-z]{1,99}){1,99}){1,99}$"})
    kind, text = asyncio.run(compilers.gate.prepare("json", schema, Options()))
    grammar = compilers.backend.compile_grammar(StructuredOutputOptions[kind.upper()], text)
    mask = compilers.backend.allocate_token_bitmask(1)
    accepted = []
    for token in TOKENIZER.encode('"' + "capital" * 20, add_special_tokens=False):
        grammar.fill_bitmask(mask, 0)
        accepted.append(grammar.accept_tokens("id", [token]))
    assert accepted[0]
    assert not accepted[-1]
    assert not grammar.accept_tokens("id", [TOKENIZER.eos_token_id])
