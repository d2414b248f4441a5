"""Fast decoding. The engine never ships with a model; the model's `generate` uses it where it is installed.

A call of `generate` is normalised by the model and prepared and validated by the library, whichever way it then takes:

| way | when |
|---|---|
| the library's search | `declined` gives a reason, or the engine is not installed |
| the engine | everything else, with the weights as they are at that moment |

Nothing is kept between two calls.

    declined(call)                  why the engine does not run a call; None: it does
    decode(call)                    its output, or None: declined, with the reason logged once at INFO
    start_decoding(...)             its decoder before the first token, for a model that decodes by several others
"""

from .calls import Call, declined, decode, start_decoding

__all__ = ["Call", "declined", "decode", "start_decoding"]
