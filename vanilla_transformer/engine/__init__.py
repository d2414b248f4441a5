"""Fast decoding. The engine never ships with a model; the model's `generate` uses it where it is installed.

A call of `generate` is normalised by the model and prepared and validated by the library, whichever way it then takes:

| way | when | weights |
|---|---|---|
| the library's search | `declined` gives a reason, or the engine is not installed | the model's own `forward` |
| the engine on live weights | everything else | as they are at that moment |
| the engine, frozen | inside `with model.frozen()` | packed, or in 8 bits |

The second becomes the third for one call that asks for 8 bits, or for a type other than that of the weights. Sources
are encoded after that is decided, by the same weights as those that decode. Only a block of `frozen` keeps anything
between two calls.

    declined(call)                  why the engine does not run a call; None: it does
    decode(call)                    its output, or None: declined, with the reason logged once at INFO
    frozen(model, quantization)     a `with` in which weights are held fixed: packed or quantized once
    opened(model)                   the block around a call, or None
    encode, start_decoding          both halves, for a model that decodes by several others
"""

from .calls import Call, Unencoded, declined, decode, encode, start_decoding
from .frozen import Frozen as frozen, opened

__all__ = ["Call", "Unencoded", "declined", "decode", "encode", "frozen", "opened", "start_decoding"]
