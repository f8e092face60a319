"""The file system's options: Striate's own names, and s3fs's names for the same options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Optional

from .errors import ConfigurationError
from .settings import Settings

# s3fs's name → ours.
SYNONYMS = {
    "endpoint_url": "endpoint", "key": "access_key", "username": "access_key", "secret": "secret_key",
    "password": "secret_key", "token": "session_token", "anon": "anonymous",
}
IN_CLIENT_KWARGS = {"endpoint_url": "endpoint", "region_name": "region", "verify": "ca"}
FSSPEC = {
    "batch_size", "use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache",
}


def settings_of(endpoint: Optional[str], storage: Mapping[str, Any]) -> tuple[Settings, dict[str, Any]]:
    """Returns the client's settings, and the remaining options for fsspec.

    Accepts the fields of `Settings`; `key`, `secret`, `token`, `anon`, `endpoint_url`, and in `client_kwargs` the
    `endpoint_url`, `region_name` and `verify` (a file), as s3fs does; and fsspec's own options.
    """
    ours = {field.name for field in fields(Settings)}
    given: dict[str, Any] = {"endpoint": endpoint} if endpoint is not None else {}
    rest: dict[str, Any] = {}
    for name, value in [*storage.items(), *_of_client(storage.get("client_kwargs"))]:
        if name == "client_kwargs":
            continue
        if name in FSSPEC:
            rest[name] = value
            continue
        own = SYNONYMS.get(name, name)
        if own not in ours:
            raise ConfigurationError(f"{name}= is not an option of this file system; it takes {', '.join(sorted(ours))}")
        if value is not None and given.setdefault(own, value) != value:
            raise ConfigurationError(f"{own} is given twice, with different values")
    return Settings(**given), rest


def _of_client(client: Optional[Mapping[str, Any]]) -> list[tuple[str, Any]]:
    translated = []
    for name, value in (client or {}).items():
        if name == "verify" and value is True:
            continue
        if name not in IN_CLIENT_KWARGS or value is False:
            raise ConfigurationError(
                f"client_kwargs[{name!r}]={value!r} is not supported; for a certificate of your own give ca=FILE"
            )
        translated.append((IN_CLIENT_KWARGS[name], value))
    return translated
