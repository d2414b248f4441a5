#!/usr/bin/env bash
# Several machines: the same command on each of them, within ten minutes. They meet at MAIN, the name of one of them:
#
#   MAIN=gpu-a MACHINES=2 scripts/launch/machines.sh wmt14-en-de-big --train corpus.en corpus.de --output /shared/big
#
# Output and text lie on a disk that all machines share. PROCESSES (8) are started on each, and PORT (29500) of MAIN
# must be open to the others. When a process is lost all are started again, up to RESTARTS (3) times, and go on from
# the last checkpoint. So they do without a lost machine under MACHINES=2:4, as long as two are there and MAIN is one of
# them; of MACHINES=2 the other ends, and the same command on both goes on.
set -euo pipefail
: "${MAIN:?the name of the machine where all meet}" "${MACHINES:?the number of machines}"
exec torchrun --nnodes "$MACHINES" --nproc-per-node "${PROCESSES:-8}" --max-restarts "${RESTARTS:-3}" \
    --shutdown-timeout 600 \
    --rdzv-backend c10d --rdzv-endpoint "$MAIN:${PORT:-29500}" --rdzv-id "${RUN_ID:-vanilla-transformer}" \
    -m vanilla_transformer train "$@"
