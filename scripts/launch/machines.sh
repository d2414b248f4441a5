#!/usr/bin/env bash
# Several machines: the same command on each of them, within ten minutes. They meet at MAIN, the name of one of them:
#
#   MAIN=gpu-a MACHINES=2 scripts/launch/machines.sh wmt14-en-de-big --train corpus.en corpus.de --output /shared/big
#
# Output and text lie on a disk that all machines share. PROCESSES (8) are started on each, and PORT (29500) of MAIN
# must be open to the others. When a process or a machine is lost all are started again, up to RESTARTS (3) times, and
# go on from the last checkpoint: with MACHINES=2:4 as soon as two are there, as long as MAIN is one of them.
set -euo pipefail
: "${MAIN:?the name of the machine where all meet}" "${MACHINES:?the number of machines}"
exec torchrun --nnodes "$MACHINES" --nproc-per-node "${PROCESSES:-8}" --max-restarts "${RESTARTS:-3}" \
    --rdzv-backend c10d --rdzv-endpoint "$MAIN:${PORT:-29500}" --rdzv-id "${RUN_ID:-vanilla-transformer}" \
    -m vanilla_transformer train "$@"
