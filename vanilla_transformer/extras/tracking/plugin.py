"""Experiment trackers: TensorBoard, Weights & Biases, Trackio and others."""

SEAMS = {
    "tracking": {
        "make": "trackers:make_trackers",
        "start": "trackers:start_trackers",
        "scores": "trackers:final_scores",
    }
}
