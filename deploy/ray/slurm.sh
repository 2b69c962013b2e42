#!/bin/bash
# A Ray cluster for the time of a Slurm job: sbatch deploy/ray/slurm.sh pkb run --agent ... --evaluator ray
# The first node is the head; the command after the script's name runs there, with RAY_ADDRESS set.
#SBATCH --job-name=pkb-ray
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=04:00:00
#SBATCH --requeue
set -euo pipefail

if [[ $# -eq 0 ]]; then
  echo "usage: sbatch $0 COMMAND [ARGUMENT...]" >&2
  exit 2
fi

export RAY_USAGE_STATS_ENABLED=0 RAY_worker_niceness=0
# The cluster takes no client without the token of this job, which srun hands to every node.
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=${RAY_AUTH_TOKEN:-$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')}
export TMPDIR=${SLURM_TMPDIR:-/tmp}
export PKB_CACHE_DIR=$TMPDIR/pkb-cache-$USER
export RAY_TMPDIR=/tmp/ray-$SLURM_JOB_ID  # sockets lie there, whose paths are short
port=${PKB_RAY_PORT:-6379}
start_s=${PKB_RAY_START_S:-120}
[[ -n "${PKB_VENV:-}" ]] && source "$PKB_VENV/bin/activate"

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
export RAY_ADDRESS=$head:$port

step=(srun --nodes=1 --ntasks=1 --overlap)  # beside other steps of this job

started=()
stop() {
  trap - EXIT
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
}
trap stop EXIT

"${step[@]}" --nodelist="$head" ray start --head --port="$port" --num-gpus="${SLURM_GPUS_PER_NODE:-0}" --block &
started+=($!)
until "${step[@]}" --nodelist="$head" ray status --address="$RAY_ADDRESS" >/dev/null 2>&1; do
  ((start_s-- > 0)) || { echo "the head does not answer at $RAY_ADDRESS" >&2; exit 3; }
  sleep 1
done
for node in "${nodes[@]:1}"; do
  "${step[@]}" --nodelist="$node" ray start --address="$RAY_ADDRESS" --num-gpus="${SLURM_GPUS_PER_NODE:-0}" --block &
  started+=($!)
done

"${step[@]}" --nodelist="$head" "$@"
