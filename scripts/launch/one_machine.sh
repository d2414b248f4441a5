#!/usr/bin/env bash
# One machine, one process for each of its devices (PROCESSES, 8 if not given):
#
#   scripts/launch/one_machine.sh wmt14-en-de-big --train corpus.en corpus.de --output big
#
# When a process dies all are started again, up to RESTARTS (3) times, and go on from the last checkpoint. To
# try it, give --max-steps 10 and another --output.
set -euo pipefail
exec torchrun --standalone --nproc-per-node "${PROCESSES:-8}" --max-restarts "${RESTARTS:-3}" \
    --shutdown-timeout 600 \
    -m vanilla_transformer train "$@"
