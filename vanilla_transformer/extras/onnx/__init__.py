"""ONNX graphs of models: the whole search as one graph, which ONNX Runtime runs."""
