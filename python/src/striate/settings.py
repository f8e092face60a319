"""The store's endpoint and the access keys: from arguments, Striate's environment variables, then AWS's as botocore resolves them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, TypedDict
from urllib.parse import urlsplit

from .errors import TIMED_OUT, ConfigurationError
from .signing import Keys


class Options(TypedDict, total=False):
    """The fields of `Settings` except the endpoint, as keyword arguments of anything that creates a client."""

    access_key: Optional[str]
    secret_key: Optional[str]
    session_token: Optional[str]
    profile: Optional[str]
    anonymous: bool
    region: Optional[str]
    ca: Optional[str]
    connections: int
    retries: int
    retry_timeouts: bool
    connect_timeout_s: float
    read_timeout_s: float


class ClientOptions(Options, total=False):
    """All fields of `Settings`."""

    endpoint: Optional[str]


@dataclass(frozen=True)
class Settings:
    """The settings of a client. They can be pickled: a worker process creates its own client from them.

    - `endpoint`: URL of the store; else `STRIATE_ENDPOINT`, `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, the profile's.
    - `access_key`, `secret_key`, `session_token`: else `STRIATE_ACCESS_KEY` and `STRIATE_SECRET_KEY`, else what botocore
      finds for `profile` (environment, `~/.aws`, container and instance roles).
    - `anonymous`: do not sign requests.
    - `region`: else `STRIATE_REGION`, `AWS_REGION`, `AWS_DEFAULT_REGION`, the profile's, `us-east-1`.
    - `ca`: file of certificates to trust; else `STRIATE_CA_FILE`, `AWS_CA_BUNDLE`, the system's.
    - `connections`: maximum number of connections, and of concurrent single requests in one call.
    - `retries`: tries after the first, without progress, before a request fails.
    - `retry_timeouts`: whether a request that timed out is sent again.
    - `connect_timeout_s`, `read_timeout_s`: timeouts for opening a connection, and for receiving any bytes.
    """

    endpoint: Optional[str] = None
    access_key: Optional[str] = None
    secret_key: Optional[str] = field(default=None, repr=False)
    session_token: Optional[str] = field(default=None, repr=False)
    profile: Optional[str] = None
    anonymous: bool = False
    region: Optional[str] = None
    ca: Optional[str] = None
    connections: int = 32
    retries: int = 5
    retry_timeouts: bool = True
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0

    def repeats(self, error: BaseException) -> bool:
        """Returns whether a request that failed with `error` may be sent again, if tries are left."""
        return self.retry_timeouts or not isinstance(error.__cause__, TIMED_OUT)

    def resolved(self) -> Resolved:
        """Resolves everything but the access keys, which may have to be fetched."""
        if bool(self.access_key) != bool(self.secret_key):
            raise ConfigurationError("give both access_key and secret_key, or neither")
        profile = _Profile(self.profile)
        endpoint = self.endpoint or _environment("STRIATE_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        endpoint = (endpoint or profile.endpoint() or "").rstrip("/")
        if not endpoint:
            raise ConfigurationError("where is the store? Give endpoint=, or set STRIATE_ENDPOINT or AWS_ENDPOINT_URL")
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path:
            raise ConfigurationError(f"{endpoint!r} is not an endpoint: it should look like https://store.example:9000")
        region = self.region or _environment("STRIATE_REGION", "AWS_REGION", "AWS_DEFAULT_REGION")
        ca = self.ca or _environment("STRIATE_CA_FILE", "AWS_CA_BUNDLE")
        return Resolved(endpoint, parts.netloc, region or profile.region() or "us-east-1", ca or None, KeySource(self))


@dataclass(frozen=True)
class Resolved:
    endpoint: str
    host: str
    region: str
    ca: Optional[str]
    keys: KeySource


class KeySource:
    """The source of the access keys for the next request; botocore renews temporary ones."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._fixed = _fixed_keys(settings)
        self._credentials: Any = None

    async def keys(self) -> Optional[Keys]:
        """Returns the access keys, or None for anonymous requests."""
        renews = getattr(self._credentials, "refresh_needed", None)
        is_ready = self._settings.anonymous or self._fixed is not None or self._credentials is not None
        if not is_ready or (renews is not None and renews()):  # this may contact a server
            return await asyncio.to_thread(self.keys_now)
        return self.keys_now()

    def keys_now(self) -> Optional[Keys]:
        """Returns the same as `keys`, for a thread that may block."""
        if self._settings.anonymous:
            return None
        if self._fixed is not None:
            return self._fixed
        if self._credentials is None:
            self._credentials = _botocore_credentials(self._settings.profile)
        frozen = self._credentials.get_frozen_credentials()
        return Keys(frozen.access_key, frozen.secret_key, frozen.token)


def _fixed_keys(settings: Settings) -> Optional[Keys]:
    if settings.access_key and settings.secret_key:
        return Keys(settings.access_key, settings.secret_key, settings.session_token)
    access_key, secret_key = _environment("STRIATE_ACCESS_KEY"), _environment("STRIATE_SECRET_KEY")
    if settings.profile is None and access_key and secret_key:
        return Keys(access_key, secret_key)
    return None


def _botocore_credentials(profile: Optional[str]) -> Any:
    found = _botocore_session(profile).get_credentials()
    if found is None:
        raise ConfigurationError(
            "no keys: give access_key= and secret_key=, set STRIATE_ACCESS_KEY and STRIATE_SECRET_KEY "
            "or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write them to ~/.aws/credentials"
        )
    return found


def _botocore_session(profile: Optional[str]) -> Any:
    import botocore.session  # takes some tenths of a second, and is not needed if all settings are given

    return botocore.session.Session(profile=profile)


def _environment(*names: str) -> Optional[str]:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


class _Profile:
    """The settings of a profile in `~/.aws/config`, read on demand."""

    def __init__(self, name: Optional[str]) -> None:
        self._name = name
        self._session: Any = None

    def _config(self) -> Mapping[str, Any]:
        if self._name is None and not os.path.exists(os.path.expanduser(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config")):
            return {}
        if self._session is None:
            self._session = _botocore_session(self._name)
        config: Mapping[str, Any] = self._session.get_scoped_config()
        return config

    def region(self) -> Optional[str]:
        return self._config().get("region")

    def endpoint(self) -> Optional[str]:
        """Returns the profile's endpoint; the one for S3 in its `services` section has precedence."""
        config = self._config()
        services: Mapping[str, Any] = {}
        if self._session is not None and "services" in config:
            services = self._session.full_config.get("services", {}).get(config["services"], {})
        s3 = services.get("s3", {})
        return (s3.get("endpoint_url") if isinstance(s3, Mapping) else None) or config.get("endpoint_url")
