"""Experiment trackers: TensorBoard, Weights & Biases, Trackio and others."""
