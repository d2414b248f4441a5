"""Fast decoding. The engine never ships with a model; `generation_vanilla_transformer.py` uses it where installed.

    decode(request)                 a search that the library has prepared -> its output, or None: declined
    encode(model, inputs, ...)      the encoder's output, or None: declined
    frozen(model, quantization)     a `with` in which weights are held fixed: packed, quantized or compiled once
    declined(request)               the reason for which `decode` would decline
    start_decoding(model, ...)      a model's `Decoding`, for a model that decodes by several others
    answer(model, ids, mask, ...)   inside `frozen`: a plain call without the library's preparation, or None: declined

The engine declines whatever `known.py` (of the model) and `requests.py` (of the call) do not list; the reason is
logged once at INFO, and the library's own search runs instead. Only a `with frozen` keeps anything between two calls.

So a call of `generate` can run in three ways:

| way | when | weights |
|---|---|---|
| the library's search | the engine declines, or is not installed | the model's own `forward` |
| the engine on live weights | everything else | as they are at that moment |
| the engine, frozen | inside `with model.frozen()` | packed, in 8 bits, or (small models) as one ONNX graph |

The second becomes the third for one call that asks for 8 bits, or for a type other than that of the weights.
"""

from .frozen import frozen, opened
from .library_calls import answer, declined, decode, encode, start_decoding
from .requests import Request

__all__ = ["Request", "answer", "declined", "decode", "encode", "frozen", "opened", "start_decoding"]
