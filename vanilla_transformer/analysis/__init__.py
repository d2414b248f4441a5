"""What a model and its training take: parameters, FLOPs, memory, hardware peaks, the tables of the paper."""
