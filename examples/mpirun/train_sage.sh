#!/bin/bash
# Train on the machines of a hostfile with Open MPI's mpirun.
#
#     HOSTS=my-hosts bash examples/mpirun/train_sage.sh PARTS --epochs 10
#
# Start it in the repository's root; every machine needs the same path there and the same interpreter, reached by ssh
# without a password. `fastsample-launch --mpi --hosts my-hosts -- examples/train_sage.py ...` does the same and also
# copies parts, marks each rank's output and shows a failing rank's traceback last.
set -euo pipefail
if [ $# -lt 1 ]; then
  echo "usage: train_sage.sh PARTS [options of train_sage.py]" >&2
  exit 2
fi
parts=$1
shift

# --map-by slot fills machine by machine, in the order of the parts. --bind-to none: by default each of two ranks would
# be bound to one core, however many the machine has.
exec "${MPIRUN:-mpirun}" --hostfile "${HOSTS:-examples/mpirun/hosts}" --map-by slot --bind-to none \
  "${PYTHON:-python}" -u examples/train_sage.py --data "$parts" "$@"
