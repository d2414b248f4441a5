"""The cost of a model and its training: parameters, FLOPs, the peaks of devices."""
