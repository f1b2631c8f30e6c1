"""`rockoon access`: access keys and their permissions.

`create` and `rotate` show a secret once. The cluster does not store it in a form that can be shown.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rockoon.cli.output import local_time, picked, print_json, print_table
from rockoon.cli.session import (
    DEFAULT_NAMESERVERS,
    AsJson,
    Nameservers,
    Work,
    Yes,
    confirm,
    shown,
    with_admin,
)

if TYPE_CHECKING:
    from rockoon.admin.access_keys import KeyDescription, Permission
    from rockoon.net.access import AccessKey

app = typer.Typer(
    no_args_is_help=True, help="Access keys: create, show, grant, revoke, rotate, delete."
)

Key = Annotated[str, typer.Argument(metavar="KEY", help="Name of the access key.")]
PERMISSION = "RESOURCE=read,write,admin"
PERMISSION_HELP = (
    "RESOURCE is topic:NAME, group:NAME (either may end in *) or cluster, followed by one or more "
    "of read, write, admin. Repeatable."
)
Permissions = Annotated[list[str], typer.Argument(metavar=f"{PERMISSION}...", help=PERMISSION_HELP)]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Write the secret to this new file (owner only) and do not show it."
    ),
]

# Options before the command.
AccessKeyName = Annotated[
    str,
    typer.Option(
        metavar="KEY",
        show_default=False,
        help="Sign calls with this access key (or ROCKOON_ACCESS_KEY); its secret is in "
        "ROCKOON_ACCESS_SECRET, or in a file.",
    ),
]
AccessSecretFile = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="The access key's secret (or ROCKOON_ACCESS_SECRET_FILE).",
    ),
]


def set_access(key: str, secret_file: str) -> None:
    """Set the environment variables that `connect` reads."""
    if key:
        os.environ["ROCKOON_ACCESS_KEY"] = key
    if secret_file:
        os.environ.pop("ROCKOON_ACCESS_SECRET", None)
        os.environ["ROCKOON_ACCESS_SECRET_FILE"] = secret_file


def show_keys(keys: "Sequence[KeyDescription]") -> None:
    print_table(
        ("KEY", "STATE", "PERMISSIONS", "DESCRIPTION"),
        (
            (each.id, state(each), " ".join(map(str, each.permissions)) or "none", each.description)
            for each in keys
        ),
        empty="there are no access keys",
    )


def show_key(key: "KeyDescription") -> None:
    print(
        f"access key {key.id} ({state(key)})" + (f": {key.description}" if key.description else "")
    )
    if key.owner:
        print(f"  owner {key.owner} (`rockoon apply`)")
    print(f"  created {local_time(key.created_ms)}")
    if key.rotated_ms:
        print(f"  secret rotated {local_time(key.rotated_ms)}")
    if key.former_until_ms:
        print(f"  old secret valid until {local_time(key.former_until_ms)}")
    print_table(
        ("RESOURCE", "MAY"),
        ((each.resource, str(each).partition("=")[2]) for each in key.permissions),
        empty="  it has no permissions yet: `rockoon access grant`",
    )


def state(key: "KeyDescription") -> str:
    return "disabled" if key.disabled else "enabled"


def key_json(key: "KeyDescription") -> dict[str, Any]:
    return {
        "key": key.id,
        **picked(key, "disabled", "description", "owner"),
        "permissions": {
            each.resource: str(each).partition("=")[2].split(",") for each in key.permissions
        },
        **picked(key, "created_ms", "rotated_ms", "former_until_ms"),
    }


@app.command()
def create(
    key: Key,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", metavar=PERMISSION, help=PERMISSION_HELP)
    ] = None,
    description: Annotated[str, typer.Option(metavar="TEXT", help="Shown by `access list`.")] = "",
    secret_file: SecretFile = None,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Create an access key and show its secret once."""
    permissions = parse(allow or [])

    with new_secret_file(secret_file):
        made = with_admin(
            nameservers,
            lambda admin: admin.access_keys.create(key, permissions, description),
        )
    show_secret(made, secret_file, as_json=as_json)


@app.command("list")
@shown(show_keys, lambda found: [key_json(each) for each in found])
def list_keys() -> "Work[Sequence[KeyDescription]]":
    """List access keys and their permissions."""
    return lambda admin: admin.access_keys.list()


@app.command()
@shown(show_key, key_json)
def show(key: Key) -> "Work[KeyDescription]":
    """Show one access key and its permissions."""
    return lambda admin: admin.access_keys.describe(key)


@app.command()
@shown(show_key, key_json)
def grant(key: Key, permissions: Permissions) -> "Work[KeyDescription]":
    """Add permissions to a key."""
    added = parse(permissions)
    return lambda admin: admin.access_keys.grant(key, added)


@app.command()
@shown(show_key, key_json)
def revoke(key: Key, permissions: Permissions) -> "Work[KeyDescription]":
    """Remove permissions from a key; the cluster ends open calls that they permitted."""
    removed = parse(permissions)
    return lambda admin: admin.access_keys.revoke(key, removed)


@app.command()
@shown(show_key, key_json)
def disable(key: Key) -> "Work[KeyDescription]":
    """Refuse calls with a key until it is enabled again; its open calls end."""
    return lambda admin: admin.access_keys.disable(key)


@app.command()
@shown(show_key, key_json)
def enable(key: Key) -> "Work[KeyDescription]":
    """Accept a disabled key again."""
    return lambda admin: admin.access_keys.enable(key)


@app.command()
def rotate(
    key: Key,
    former: Annotated[
        str,
        typer.Option(
            metavar="DURATION", help="How long the old secret stays valid; 0s: not at all."
        ),
    ] = "1d",
    secret_file: SecretFile = None,
    as_json: AsJson = False,
    nameservers: Nameservers = DEFAULT_NAMESERVERS,
) -> None:
    """Replace a key's secret and show the new one once."""
    from rockoon.cli.arguments import parse_duration

    former_seconds = parse_duration(former) / 1000

    with new_secret_file(secret_file):
        made = with_admin(nameservers, lambda admin: admin.access_keys.rotate(key, former_seconds))
    show_secret(made, secret_file, as_json=as_json)


@app.command()
def delete(key: Key, yes: Yes = False, nameservers: Nameservers = DEFAULT_NAMESERVERS) -> None:
    """Delete a key; its open calls end."""
    confirm(f"Delete access key {key}?", yes=yes)

    with_admin(nameservers, lambda admin: admin.access_keys.delete(key))
    print(f"access key {key} is deleted")


def parse(texts: list[str]) -> "list[Permission]":
    from rockoon.admin.access_keys import Permission

    return [Permission.parse(text) for text in texts]


@contextmanager
def new_secret_file(secret_file: Path | None) -> Iterator[None]:
    """Create the empty secret file before the body asks the cluster for a secret.

    If the file could not be written after the call, the secret would be lost. If the body fails,
    the file is deleted. Raises typer.BadParameter: the file exists or cannot be created.
    """
    if secret_file is None:
        yield
        return
    try:
        os.close(os.open(secret_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as failure:
        reason = f"{secret_file}: {failure.strerror}"
        raise typer.BadParameter(reason, param_hint="--secret-file") from None
    try:
        yield
    except BaseException:
        secret_file.unlink(missing_ok=True)
        raise


def show_secret(key: "AccessKey", secret_file: Path | None, *, as_json: bool) -> None:
    if secret_file is not None:
        secret_file.write_text(key.secret + "\n")
    if as_json:
        where = {"secret": key.secret} if secret_file is None else {"file": str(secret_file)}
        print_json({"key": key.id} | where)
        return
    print(f"access key {key.id}")
    if secret_file is not None:
        print(f"its secret is in {secret_file}")
        return
    print(f"  ROCKOON_ACCESS_KEY={key.id}")
    print(f"  ROCKOON_ACCESS_SECRET={key.secret}")
    print("the secret is not shown again")
