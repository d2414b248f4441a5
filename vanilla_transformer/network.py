"""Tells whether the Hub answers: where it does not, the libraries try for half a minute before they say so."""

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

# For an answer to each address of the Hub.
_SECONDS = 3.0


@contextmanager
def hub_or_cache() -> Iterator[str | None]:
    """Within it the libraries take what they have of the Hub in their cache where the Hub itself cannot be asked.

    Gives the reason in words then, and None where the Hub answers.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        yield "HF_HUB_OFFLINE keeps the Hub from being asked: check the name, or unset it"
    elif _answers(constants.ENDPOINT):
        yield None
    else:
        constants.HF_HUB_OFFLINE = True
        try:
            yield f"the Hub ({constants.ENDPOINT}) does not answer: check the name and the network"
        finally:
            constants.HF_HUB_OFFLINE = False


def _answers(url: str) -> bool:
    parts = urlsplit(url)
    proxies, host = urllib.request.getproxies(), parts.hostname or ""
    if {parts.scheme, "all"} & proxies.keys() and not urllib.request.proxy_bypass(host):
        return True  # Whoever goes through a proxy may not know the Hub's address.
    try:
        socket.create_connection((host, parts.port or (80 if parts.scheme == "http" else 443)), _SECONDS).close()
    except OSError:
        return False
    return True
