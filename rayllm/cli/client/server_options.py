"""Options that say which server a command talks with."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rayllm.client.api.address import Address
from rayllm.client.api.api_key import ApiKey
from rayllm.client.api.errors import ServerError
from rayllm.errors import ConfigError

if TYPE_CHECKING:
    from rayllm.client.api.server import Server

_URL_VARIABLES = ["RAYLLM_URL", "OPENAI_BASE_URL", "OPENAI_API_BASE"]
_HERE = "http://127.0.0.1:8000"


def server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--url` and `--api-key-env`, as arguments `url: Address` and `key: ApiKey`."""
    key = click.option(
        "--api-key-env",
        "key",
        metavar="NAME",
        default=ApiKey().variable,
        show_default=True,
        callback=_key,
        help="Environment variable that holds the server's key.",
    )
    url = click.option(
        "--url",
        metavar="URL",
        default=_HERE,
        show_default=True,
        envvar=_URL_VARIABLES,
        show_envvar=True,
        callback=_address,
        help="Address of the server, with `/v1` or without.",
    )
    return url(key(command))


def _address(ctx: click.Context, param: click.Parameter, value: str) -> Address:
    try:
        return Address.parse(value)
    except ConfigError as error:
        raise click.BadParameter(error.message) from None


def _key(ctx: click.Context, param: click.Parameter, value: str) -> ApiKey:
    found = os.environ.get(value, "").strip()
    if not found and ctx.get_parameter_source("key") is not ParameterSource.DEFAULT:
        raise click.BadParameter(f"the environment has no {value}.")
    if not found.isprintable() or not found.isascii():
        raise click.BadParameter(f"{value} holds what cannot be sent as a key.")
    return ApiKey(value, found)


async def choose_model(server: Server, given: str | None) -> str:
    """The model that was named, else the server's first, which is said on standard error.

    Raises:
        ServerError: the server does not list its models, or has none.
    """
    if given:
        return given
    cards = await server.models()
    found = next((card.id for card in cards if not card.base), None)
    if found is None:
        raise ServerError(f"{server.address} has no models.", "no models")
    click.echo(f"model: {found}", err=True)
    return found
