"""Nulls in requests, by vLLM's own models of every endpoint."""

from __future__ import annotations

import copy
import json
import re
from argparse import Namespace
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from fastapi.routing import APIRoute
from pydantic import ValidationError

from benchmarks.hostility.nulls import BODIES, NESTED, without_nulls
from rayllm.core.endpoints import BY_PATH, DETOKENIZE
from rayllm.engine.middleware.request_rewriting import GUARDED_FIELDS, rewrite_request
from rayllm.engine.request_plan import RequestPlan
from rayllm.engine.vllm import moved_names
from rayllm.engine.vllm.application import LEFT_TO_ROUTERS, leave_to_routers
from rayllm.engine.vllm.request_validation import describe_validation_error, validate_cheaply

PLAN = RequestPlan(allowed_fields=GUARDED_FIELDS)
# Ids that vLLM draws for items without one.
_DRAWN = re.compile(r"(rs|msg)_\w+")
TASKS = ("generate", "embed", "classify", "token_embed", "token_classify", "transcription")


def application(task: str) -> Any:
    """vLLM's application for a model of this task."""
    server = vars(moved_names.load("FrontendArgs")(disable_fastapi_docs=True))
    arguments = Namespace(**{"enable_fault_tolerance": False, **server})
    config = SimpleNamespace(get_pooling_task=lambda _: task, hf_config=SimpleNamespace(num_labels=1))
    return moved_names.load("build_app")(arguments, TASKS, config)


def test_routers_count_requests_and_answer_other_origins() -> None:
    app = application("embed")
    assert {each.cls.__name__ for each in app.user_middleware} >= LEFT_TO_ROUTERS, "vLLM has other names for it"
    leave_to_routers(app)
    assert LEFT_TO_ROUTERS.isdisjoint(each.cls.__name__ for each in app.user_middleware)


@pytest.fixture(scope="module")
def routes() -> dict[str, APIRoute]:
    """The routes of vLLM's application, for a model of every task, with our validation."""
    found = {}
    for task in ("embed", "classify"):
        app = application(task)
        validate_cheaply(app)
        found |= {route.path: route for route in app.routes if isinstance(route, APIRoute) and "POST" in route.methods}
    return found


def models_of(kind: Any) -> list[Any]:
    """The models that a request's body may have, by its annotation."""
    if get_origin(kind) is Annotated:
        return models_of(get_args(kind)[0])
    return list(get_args(kind)) if get_origin(kind) in (Union, UnionType) else [kind]


def body_of(route: APIRoute) -> Any:
    if not route.dependant.body_params:
        pytest.skip("this vLLM parses the body within the endpoint")
    return route.dependant.body_params[0]


def fields_of(route: APIRoute) -> tuple[set[str], set[str]]:
    """The fields that every model of a route's body requires, and those that one can do without."""
    models = models_of(body_of(route).field_info.annotation)
    required = [{f.alias or name for name, f in each.model_fields.items() if f.is_required()} for each in models]
    every = {f.alias or name for each in models for name, f in each.model_fields.items()}
    return set.intersection(*required) - {"model"}, every - set.union(*required) - {"model"}


def parsed(route: APIRoute, body: dict[str, Any]) -> tuple[type, Any]:
    """What vLLM's endpoint gets for a client's body."""
    rewritten = rewrite_request(route.path, {"model": "m", **copy.deepcopy(body)}, PLAN)
    request = body_of(route)._type_adapter.validate_python(rewritten)
    dumped = request.model_dump(mode="json", exclude={"request_id"}, warnings=False)
    return type(request), json.loads(_DRAWN.sub("drawn", json.dumps(dumped)))


def test_every_endpoint_is_tested(routes: dict[str, APIRoute]) -> None:
    paths = {path for path, endpoint in BY_PATH.items() if not endpoint.is_form}
    assert paths == BODIES.keys() <= routes.keys()


@pytest.mark.parametrize("path", BODIES)
def test_a_null_is_absent_in_every_optional_field(routes: dict[str, APIRoute], path: str) -> None:
    _, optional = fields_of(routes[path])
    nulls: dict[str, Any] = dict.fromkeys(sorted(optional - BODIES[path].keys()))
    assert nulls or path == DETOKENIZE
    absent = parsed(routes[path], BODIES[path])
    for name in nulls:
        assert parsed(routes[path], {**BODIES[path], name: None}) == absent, name
    assert parsed(routes[path], {**BODIES[path], **nulls}) == absent


@pytest.mark.parametrize("path", BODIES)
def test_a_null_in_a_required_field_is_told(routes: dict[str, APIRoute], path: str) -> None:
    required, _ = fields_of(routes[path])
    for name in required:
        with pytest.raises(ValidationError) as caught:
            parsed(routes[path], {**BODIES[path], name: None})
        message, param = describe_validation_error(caught.value)
        assert f"`{name}` is required" in message
        assert param == name


@pytest.mark.parametrize(("path", "fields"), NESTED)
def test_a_null_is_absent_in_nested_objects(routes: dict[str, APIRoute], path: str, fields: dict[str, Any]) -> None:
    body = {**BODIES[path], **fields}
    (kind, request), (same_kind, expected) = (parsed(routes[path], each) for each in (body, without_nulls(body)))
    # Of the nulls that a field takes, some stay.
    assert (kind, without_nulls(request)) == (same_kind, without_nulls(expected))
