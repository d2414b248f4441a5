"""The cost of a model and its training: parameters, FLOPs, memory, hardware peaks, the tables of the paper."""
