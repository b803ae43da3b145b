"""Makes vLLM's OpenAI application on an engine."""

from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Collection
from types import SimpleNamespace
from typing import Any

from rayllm.core.errors import ConfigError
from rayllm.engine.arguments import NO_HOST, VllmArguments
from rayllm.engine.vllm import import_shims, moved_names
from rayllm.engine.vllm.context_length import say_too_long
from rayllm.engine.vllm.engine import engine_arguments
from rayllm.engine.vllm.errors import client_errors, describe_exceptions
from rayllm.engine.vllm.request_validation import validate_cheaply
from rayllm.engine.vllm.tool_plugin import load_tool_plugin

LEFT_TO_ROUTERS = {"PrometheusInstrumentatorMiddleware", "CORSMiddleware"}
"""Middleware that vLLM's application has without RayLLM, and whose work routers do."""
# Stands for the field with the prompt.
_MEDIA = "media"
_LOCAL_FILE = "This model takes no local files (`file://`). Send a data URL."
_OTHER_HOST = (
    "This model takes no media from other hosts. Send a data URL, or name the host in the model's "
    "`engine_kwargs.allowed_media_domains`."
)


def make_server_arguments(arguments: VllmArguments) -> Namespace:
    """The flat namespace of arguments that vLLM's application reads.

    Raises:
        ConfigError: a tool or reasoning parser is unknown; the message lists the known parsers.
    """
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    server = moved_names.load("FrontendArgs")(**{"disable_fastapi_docs": True, **arguments.server})
    engine = engine_arguments(arguments)
    if server.tool_parser_plugin or engine.reasoning_parser_plugin:
        # Users' plugins may import from old paths of vLLM.
        import_shims.install()
    if server.tool_parser_plugin:
        load_tool_plugin(server.tool_parser_plugin, ToolParserManager)
    if engine.reasoning_parser_plugin:
        ReasoningParserManager.import_reasoning_parser(engine.reasoning_parser_plugin)
    _check_known("tool_calling.parser", server.tool_call_parser, ToolParserManager.list_registered())
    _check_known("reasoning_parser", engine.reasoning_parser, ReasoningParserManager.list_registered())
    if engine.reasoning_parser:
        engine.structured_outputs_config.reasoning_parser = engine.reasoning_parser
    return Namespace(**(vars(server) | vars(engine)))


def _check_known(key: str, name: str | None, known: list[str]) -> None:
    if name and name not in known:
        raise ConfigError(f"{key}: vLLM has no parser `{name}`; it has {', '.join(sorted(known))}.")


async def make_server(engine: Any, arguments: Namespace, path: Callable[[], str]) -> Any:
    """Make vLLM's FastAPI application on `engine`. Call once per process: vLLM keeps routers in module globals.

    `path` returns the path of the current request.
    """
    tasks = await engine.get_supported_tasks()
    app = moved_names.load("build_app")(arguments, tasks, engine.model_config)
    leave_to_routers(app)
    await moved_names.load("init_app_state")(engine, app.state, arguments, tasks)
    # vLLM's error handlers set `should_exit` when the engine has died.
    app.state.server = SimpleNamespace(should_exit=False)
    validate_cheaply(app)
    describe_exceptions(lambda error: say_too_long(error, path(), engine.model_config.max_model_len))
    end_cut_inputs()
    refuse_media()
    return app


def leave_to_routers(app: Any) -> None:
    """Remove vLLM's middleware whose work routers do: to count and time requests, and to add CORS headers."""
    app.user_middleware = [each for each in app.user_middleware if each.cls.__name__ not in LEFT_TO_ROUTERS]


def paths(server: Any) -> frozenset[str]:
    """The POST paths of vLLM's application, which depend on the model's tasks."""
    return frozenset(route.path for route in server.routes if "POST" in (getattr(route, "methods", None) or ()))


def own_chat_template(engine: Any) -> str | None:
    """The chat template of the model's processor or tokenizer for requests without tools; None without a template."""
    from vllm.renderers.hf import resolve_chat_template

    tokenizer = engine.get_tokenizer()
    if not hasattr(tokenizer, "get_chat_template"):
        # Mistral's own tokenizers have no template text.
        return None
    template = resolve_chat_template(tokenizer, None, None, model_config=engine.model_config)
    return str(template) if template is not None else None


def name_requested_stops(requested: Callable[[], Collection[str]]) -> None:
    """Have Anthropic's API name only stop texts that the request asked for; those of the model's file end the turn."""
    from vllm.entrypoints.anthropic import serving

    # vLLM before 0.31 names no stop texts.
    if original := getattr(serving, "_to_anthropic_stop_reason", None):
        serving._to_anthropic_stop_reason = lambda finish, stop, *more, **named: original(
            finish, stop if stop in requested() else None, *more, **named
        )


def pass_anthropic_errors(server: Any) -> None:
    """Have Anthropic's API, which is built on vLLM's chat, return the chat's errors."""
    if serving := getattr(server.state, "anthropic_serving_messages", None):
        _return_errors(serving, "create_messages")
        _return_errors(serving, "count_tokens")
        _pass_stream_errors(serving)


def _return_errors(serving: Any, name: str) -> None:
    """Have a method return client errors as vLLM's error objects; vLLM before 0.28 answers with status 500."""
    original = getattr(serving, name)

    async def answer(*args: Any) -> Any:
        try:
            return await original(*args)
        except Exception as error:
            if isinstance(error, (ValueError, *client_errors())):
                return moved_names.load("create_error_response")(error)
            raise

    setattr(serving, name, answer)


def _pass_stream_errors(serving: Any) -> None:
    """Pass errors in a chat stream around vLLM's converter to Anthropic's events, which leaves out their codes."""
    original = serving.message_stream_converter

    async def converted(chunks: AsyncIterator[Any]) -> AsyncIterator[str]:
        errors: list[str] = []

        async def without_errors() -> AsyncIterator[Any]:
            async for chunk in chunks:
                if error := _error_event(chunk):
                    errors.append(error)
                elif not errors:
                    yield chunk

        async for event in original(without_errors()):
            if not errors:
                yield event
        for error in errors:
            yield f"event: error\n{error}"

    serving.message_stream_converter = converted


def _error_event(chunk: Any) -> str | None:
    """The event of an error in a chat stream, whose chunks are events before vLLM 0.33; None for other chunks."""
    if isinstance(chunk, str):
        return chunk if chunk.startswith('data: {"error"') else None
    return f"data: {chunk.model_dump_json()}\n\n" if hasattr(chunk, "error") else None


def end_cut_inputs() -> None:
    """Make the input of a custom tool's call that is cut off the text that was streamed, not unfinished JSON."""
    from vllm.entrypoints.openai.responses import streaming_events as events

    if whole := getattr(events, "decode_custom_tool_input", None):
        events.decode_custom_tool_input = lambda text: events.decode_custom_tool_input_prefix(text) or whole(text)


def refuse_media() -> None:
    """Have vLLM's media connectors refuse what the model's file does not allow, with messages for clients.

    vLLM's own messages address the server's operator, and for a local file, vLLM answers with status 500.
    """
    from vllm.exceptions import VLLMValidationError
    from vllm.multimodal.media import MediaConnector

    load_file, check_host = MediaConnector._load_file_url, MediaConnector._assert_url_in_allowed_media_domains

    def load_allowed_file(self: Any, *args: Any) -> Any:
        if self.allowed_local_media_path is None:
            raise VLLMValidationError(_LOCAL_FILE, parameter=_MEDIA)
        return load_file(self, *args)

    def check_allowed_host(self: Any, *args: Any) -> None:
        if list(self.allowed_media_domains) == [NO_HOST]:
            raise VLLMValidationError(_OTHER_HOST, parameter=_MEDIA)
        check_host(self, *args)

    MediaConnector._load_file_url = load_allowed_file
    MediaConnector._assert_url_in_allowed_media_domains = check_allowed_host
