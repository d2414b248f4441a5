"""Fast decoding. The engine never ships with a model; the model's `generate` uses it where it is installed.

A call of `generate` is normalised by the model and prepared and validated by the library, whichever way it then takes:

| way | when |
|---|---|
| the library's search | `declined` gives a reason, or the engine is not installed |
| the engine | everything else, with the weights as they are at that moment |

Sources are encoded after that is decided, by the same weights as those that decode. Nothing is kept between two calls.

    declined(call)                  why the engine does not run a call; None: it does
    decode(call)                    its output, or None: declined, with the reason logged once at INFO
    encode, start_decoding          both halves, for a model that decodes by several others
"""

from .calls import Call, Unencoded, declined, decode, encode, start_decoding

__all__ = ["Call", "Unencoded", "declined", "decode", "encode", "start_decoding"]
