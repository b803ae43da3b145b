"""Options for the server that a command connects to."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import click
from click.core import ParameterSource

from rayllm.cli.shared.server import Server, ServerError, parse_address
from rayllm.errors import ConfigError

_URL_VARIABLES = ["RAYLLM_URL", "OPENAI_BASE_URL", "OPENAI_API_BASE"]
_DEFAULT_URL = "http://127.0.0.1:8000"


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--url` and `--api-key-env` to a command, as its argument `server: Server`."""

    @wraps(command)
    def with_server(url: tuple[str, str], key: tuple[str, str], **options: Any) -> Any:
        return command(server=Server(*url, *key), **options)

    key = click.option(
        "--api-key-env",
        "key",
        metavar="NAME",
        default=Server.variable,
        show_default=True,
        callback=_key,
        help="Environment variable that holds the server's key.",
    )
    url = click.option(
        "--url",
        metavar="URL",
        default=_DEFAULT_URL,
        show_default=True,
        envvar=_URL_VARIABLES,
        show_envvar=True,
        callback=_address,
        help="Address of the server, with `/v1` or without.",
    )
    return url(key(with_server))


def _address(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, str]:
    try:
        return parse_address(value)
    except ConfigError as error:
        raise click.BadParameter(error.message) from None


def _key(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, str]:
    key = os.environ.get(value, "").strip()
    if not key and ctx.get_parameter_source("key") is not ParameterSource.DEFAULT:
        raise click.BadParameter(f"the environment has no {value}.")
    if not key.isprintable() or not key.isascii():
        raise click.BadParameter(f"{value} holds characters that cannot be sent in a header.")
    return key, value


def choose_model(server: Server, model: str | None) -> str:
    """The given model, else the server's first one, which is printed on standard error.

    Raises:
        ServerError: the server does not list its models, or has none.
    """
    if model:
        return model
    first = next((each.id for each in server.models() if not each.base), None)
    if first is None:
        raise ServerError(f"{server} has no models.")
    click.echo(f"model: {first}", err=True)
    return first
