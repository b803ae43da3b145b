"""`rayllm keys`"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from pydantic import ValidationError

from rayllm.cli.terminal.table import Table
from rayllm.errors import ConfigError

if TYPE_CHECKING:
    from rayllm.access import Key, KeyFile


@click.group("keys")
@click.option(
    "--file", "uri", required=True, metavar="FILE", help="`router.keys` of the service: a path, s3:// or gs://."
)
@click.pass_context
def command(ctx: click.Context, uri: str) -> None:
    """Create, list, rotate and revoke the API keys of a service.

    FILE holds hashes of the keys, never a key itself. Running services follow it within seconds.
    """
    from rayllm.access import KeyFile

    ctx.obj = KeyFile(uri if "://" in uri else str(Path(uri).expanduser().absolute()))


@command.command("create")
@click.option("--name", required=True, help="Unique name; logs show it.")
@click.option("--tenant", help="Owner of the key's files and batches; default: the name.")
@click.option(
    "--models", metavar="NAMES", help="Models that it may use, by commas, with `*` for any text; default: all."
)
@click.option(
    "--expires", metavar="WHEN", help="When it stops working: days from now, or a time such as 2027-01-31T00:00Z."
)
@click.option("--admin", is_flag=True, help="It may load adapters and see other keys' requests.")
@click.pass_obj
def create(file: KeyFile, name: str, tenant: str | None, models: str | None, expires: str | None, admin: bool) -> None:
    """Create a key, and print it: it is shown only this once."""
    from rayllm.access import Key, new_key
    from rayllm.access.key import key_hash
    from rayllm.config.faults import config_error

    secret = new_key()
    names = None if models is None else [model.strip() for model in models.split(",") if model.strip()]
    with file.change() as keys:
        if any(key.name == name for key in keys):
            raise ConfigError(f"{file.uri}: there is a key `{name}` already.\nhint: choose another name, or rotate it.")
        fields = {"name": name, "tenant": tenant, "models": names, "expires": _time(expires), "admin": admin}
        try:
            keys.append(Key.model_validate({**fields, "hash": key_hash(secret, file.salt)}))
        except ValidationError as error:
            raise config_error("the new key", Key, error) from None
    click.echo(secret)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def list_keys(file: KeyFile, as_json: bool) -> None:
    """List the keys, without their hashes."""
    keys = file.load().keys
    if as_json:
        click.echo(json.dumps([_shown(key) for key in keys], indent=1))
    elif keys:
        click.echo(_table(keys).text())
    else:
        click.echo("no keys.", err=True)


@command.command("revoke")
@click.argument("name")
@click.pass_obj
def revoke(file: KeyFile, name: str) -> None:
    """Delete the key NAME. Requests in progress are answered to their end."""
    with file.change() as keys:
        del keys[_index(file, keys, name)]
    click.echo(f"revoked {name}", err=True)


@command.command("rotate")
@click.argument("name")
@click.pass_obj
def rotate(file: KeyFile, name: str) -> None:
    """Replace the key NAME by a new one with the same rights, and print that: it is shown only this once."""
    from rayllm.access import new_key
    from rayllm.access.key import key_hash

    secret = new_key()
    with file.change() as keys:
        index = _index(file, keys, name)
        keys[index] = keys[index].model_copy(update={"hash": key_hash(secret, file.salt)})
    click.echo(secret)


def _index(file: KeyFile, keys: list[Key], name: str) -> int:
    from rayllm.config.faults import did_you_mean

    names = [key.name for key in keys]
    if name not in names:
        raise ConfigError(f"{file.uri}: there is no key `{name}`{did_you_mean(name, names) or '.'}")
    return names.index(name)


def _time(text: str | None) -> datetime | str | None:
    if text and text.isascii() and text.isdigit() and len(text) <= 5:
        return datetime.now(UTC).replace(microsecond=0) + timedelta(days=int(text))
    return text


def _shown(key: Key) -> dict[str, Any]:
    return {
        **key.model_dump(mode="json", exclude={"hash"}),
        "tenant": key.tenant or key.name,
        "expired": key.has_expired,
    }


def _table(keys: tuple[Key, ...]) -> Table:
    table = Table(["name", "tenant", "models", "expires", "admin"])
    for key in keys:
        models = "all" if key.models is None else ", ".join(key.models) or "none"
        expires = f"{key.expires:%Y-%m-%d %H:%M}Z{' (expired)' if key.has_expired else ''}" if key.expires else "-"
        table.add([key.name, key.tenant or key.name, models, expires, "yes" if key.admin else "-"])
    return table
