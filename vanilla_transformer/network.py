"""A check whether the Hub answers: if it does not, the libraries retry for half a minute before they say so."""

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

# Timeout in seconds for each address of the Hub.
_SECONDS = 3.0


@contextmanager
def hub_or_cache() -> Iterator[str | None]:
    """Makes the libraries use their cache of the Hub in its body if the Hub cannot be reached.

    For who works without a network: not each of the libraries' calls takes an argument for it.

    Yields the reason in words in that case, and None if the Hub answers.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        yield "HF_HUB_OFFLINE is set, so the Hub was not asked: check the name, or unset it"
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
        return True  # Behind a proxy the Hub's address may not resolve.
    try:
        socket.create_connection((host, parts.port or (80 if parts.scheme == "http" else 443)), _SECONDS).close()
    except OSError:
        return False
    return True
