"""One file for each metric, for `evaluate.load(metric_path(...))`."""
