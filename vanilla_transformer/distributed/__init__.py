"""What the processes of a run agree on."""
