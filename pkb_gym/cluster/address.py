"""Addresses of clusters: "ray", or "ray://host:port", with settings of the pool as a query.

ray                       the cluster that this process is connected to or that RAY_ADDRESS names, or one started here
ray://head:10001          a cluster by Ray Client, from outside
ray?exclusive_most=3      settings of the pool, see `PoolSettings`
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from pkb_gym.cluster.settings import PoolSettings, checked_settings
from pkb_gym.engine.errors import ConfigError

SCHEME = "ray"


@dataclass(frozen=True)
class ClusterAddress:
    """The address of a cluster, with the settings of its pool.

    Attributes:
        client_url: URL of Ray Client; None for the cluster that this process belongs to.
        settings: Settings of the pool; those that the address names are its `model_fields_set`.
    """

    client_url: str | None
    settings: PoolSettings

    @classmethod
    def parse(cls, text: str) -> ClusterAddress:
        """Reads an address.

        Raises:
            ConfigError: It is none, or a setting does not exist or takes no such value.
        """
        parts = urlsplit(text)
        if parts.scheme != SCHEME:
            if parts.scheme or parts.netloc or parts.path != SCHEME or parts.fragment:
                raise ConfigError(f"{text!r} is no address of a cluster; expected 'ray' or 'ray://host:port'")
            return cls(None, _settings(parts.query, text))
        try:
            complete = bool(parts.hostname) and parts.port is not None and parts.port > 0
        except ValueError:  # a port that is no number
            complete = False
        if not complete or parts.path not in ("", "/") or parts.fragment or parts.username is not None:
            raise ConfigError(f"{text!r} is no address of a cluster; expected one like ray://head:10001")
        return cls(f"{SCHEME}://{parts.netloc}", _settings(parts.query, text))


def _settings(query: str, text: str) -> PoolSettings:
    try:
        choices = parse_qs(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigError(f"{text!r}: expected settings as NAME=VALUE&NAME=VALUE after the question mark") from None
    return checked_settings(choices)
