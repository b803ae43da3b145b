"""`rayllm keys`"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import urlencode

import click

from rayllm.cli.shared.server import Server, server_options
from rayllm.cli.shared.terminal import table
from rayllm.core.errors import ConfigError
from rayllm.core.priority import PriorityName

if TYPE_CHECKING:
    from rayllm.access import Key, KeyFile

_COUNT = click.IntRange(min=1)


@click.group("keys")
@click.option("--file", "uri", metavar="FILE", help="`router.keys` of the service: a path, s3:// or gs://.")
@click.pass_context
def command(ctx: click.Context, uri: str | None) -> None:
    """Create, list, rotate and revoke the API keys of a service.

    FILE holds hashes of the keys, never a key itself. Running services follow it within seconds. `show-usage` needs no
    file.
    """
    ctx.obj = uri


def _pass_file(function: Callable[..., None]) -> Callable[..., None]:
    """Pass the `KeyFile` of `--file` to a command."""

    @click.pass_obj
    @wraps(function)
    def wrapper(uri: str | None, /, **options: Any) -> None:
        from rayllm.access import KeyFile

        if not uri:
            raise click.UsageError("--file FILE is needed, before the command.")
        function(KeyFile(uri if "://" in uri else str(Path(uri).expanduser().absolute())), **options)

    return wrapper


@command.command("create")
@click.option("--name", required=True, help="Unique name; logs show it.")
@click.option("--tenant", help="Owner of the key's files and batches; default: the name.")
@click.option(
    "--models", metavar="NAMES", help="Models that it may use, by commas, with `*` for any text; default: all."
)
@click.option("--requests-per-minute", type=_COUNT, metavar="N", help="Most requests in any minute.")
@click.option("--tokens-per-minute", type=_COUNT, metavar="N", help="Most tokens in any minute, answers included.")
@click.option("--tokens-per-day", type=_COUNT, metavar="N", help="Most tokens in any 24 hours.")
@click.option("--max-concurrent", type=_COUNT, metavar="N", help="Most requests in progress at once.")
@click.option(
    "--priority",
    "--class",
    "priority",
    type=click.Choice(get_args(PriorityName)),
    default="standard",
    show_default=True,
    help="Class of its requests.",
)
@click.option(
    "--expires", metavar="WHEN", help="When it stops working: days from now, or a time such as 2027-01-31T00:00Z."
)
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="What usage can be grouped by.")
@click.option("--admin", is_flag=True, help="It may load adapters and see other keys' requests.")
@click.option("--scrape", is_flag=True, help="It may read `/metrics`, and nothing else.")
@_pass_file
def create(
    file: KeyFile, name: str, models: str | None, expires: str | None, labels: tuple[str, ...], **options: Any
) -> None:
    """Create a key, and print it: it is shown only this once."""
    from rayllm.access import Key, new_key
    from rayllm.access.key import key_hash
    from rayllm.config.faults import validating

    secret = new_key()
    names = None if models is None else [model.strip() for model in models.split(",") if model.strip()]
    with file.change() as keys:
        if any(key.name == name for key in keys):
            raise ConfigError(f"{file.uri}: there is a key `{name}` already.\nhint: choose another name, or rotate it.")
        fields = {"name": name, "models": names, "expires": _time(expires), "labels": _labels(labels), **options}
        with validating("the new key", Key):
            keys.append(Key.model_validate({**fields, "hash": key_hash(secret, file.salt)}))
    click.echo(secret)


@command.command("show-usage")
@server_options
@click.option(
    "--by", default="key,model", show_default=True, metavar="GROUPS", help="day, key, model, adapter, label:NAME."
)
@click.option("--since", metavar="DAY", help="First day, in UTC; default: 30 days ago.")
@click.option("--until", metavar="DAY", help="Last day; default: today.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show_usage(server: Server, by: str, as_json: bool, **days: str | None) -> None:
    """Show what a key has used, or all keys for administrators."""
    query = urlencode({"group_by": by, **{name: day for name, day in days.items() if day}})
    rows: list[dict[str, Any]] = server.get(f"usage?{query}", data=list)["data"]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    elif rows:
        cells = [[f"{each:,}" if isinstance(each, int) else each or "-" for each in row.values()] for row in rows]
        click.echo(table([name.replace("_", " ") for name in rows[0]], cells))
    else:
        click.echo("no usage.", err=True)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_pass_file
def list_keys(file: KeyFile, as_json: bool) -> None:
    """List the keys, without their hashes."""
    keys = file.load().keys
    if as_json:
        shown = [key.model_dump(mode="json", exclude={"hash"}) | {"expired": key.has_expired} for key in keys]
        click.echo(json.dumps([{**each, "tenant": each["tenant"] or each["name"]} for each in shown], indent=1))
    elif keys:
        click.echo(table(("name", "tenant", "models", "limits", "labels", "expires", "admin"), map(_row, keys)))
    else:
        click.echo("no keys.", err=True)


@command.command("revoke")
@click.argument("name")
@_pass_file
def revoke(file: KeyFile, name: str) -> None:
    """Delete the key NAME. Requests in progress are answered to their end."""
    with file.change() as keys:
        del keys[_index(file, keys, name)]
    click.echo(f"revoked {name}", err=True)


@command.command("rotate")
@click.argument("name")
@_pass_file
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


def _labels(texts: tuple[str, ...]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name in labels:
            raise ConfigError(f"--label: `{text}` must be NAME=VALUE, once for each name.")
        labels[name] = value
    return labels


def _time(text: str | None) -> datetime | str | None:
    if text and text.isascii() and text.isdigit() and len(text) <= 5:
        return datetime.now(UTC).replace(microsecond=0) + timedelta(days=int(text))
    try:
        return text and datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"--expires: `{text}` must be a number of days, or a time such as 2027-01-31T00:00Z."
        ) from None


def _row(key: Key) -> list[str]:
    from rayllm.access.limits import UNITS

    models = "all" if key.models is None else ", ".join(key.models) or "none"
    models = "/metrics only" if key.scrape else models
    expires = f"{key.expires:%Y-%m-%d %H:%M}Z{' (expired)' if key.has_expired else ''}" if key.expires else "-"
    limits = ", ".join(f"{limit:,} {UNITS[kind]}" for kind, limit in key.caller.limits.items()) or "none"
    labels = ", ".join(f"{name}={value}" for name, value in key.labels.items()) or "-"
    return [key.name, key.tenant or key.name, models, limits, labels, expires, "yes" if key.admin else "-"]
