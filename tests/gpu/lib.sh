# Sourced by the scripts of this folder: what a GPU is needed for, and how close numbers must be.
. "$(dirname "${BASH_SOURCE[0]}")/../cluster/lib.sh"
gpus=$("$DTD_BIN/dt-worker" --probe | jq '.gpus | length')
[ "$gpus" -gt 0 ] || skip "$("$DTD_BIN/dt-worker" --probe | jq -r .gpu_missing)"

# A rehearsal on stand-ins trains what an emulated GPU computes in milliseconds.
small=()
[ -z "${DTD_GPU_STAND_IN:-}" ] || small=(--set model.dim=32 --set model.layers=1 --set model.heads=1 --set model.ffn=32 --set train.seq=16
  --set train.global_batch=4 --set train.micro_batch=1)

# near WHAT A B TOLERANCE: lines "step loss" of two files, the same steps, losses within a relative tolerance.
near() {
  local worst
  [ "$(cut -d' ' -f1 "$2")" = "$(cut -d' ' -f1 "$3")" ] || fail "$1: other steps"
  worst=$(paste -d' ' "$2" "$3" | awk '{d = ($2 - $4) / $2; if (d < 0) d = -d; if (d > w) w = d} END {print w + 0}')
  awk "BEGIN {exit !($worst <= $4)}" || { paste -d' ' "$2" "$3"; fail "$1: losses differ by $worst, allowed are $4"; }
  echo "$1: $(wc -l <"$2") losses within $worst of each other (allowed $4)"
}

# A bare machine has no cmp.
same_bits() { [ "$(sha256sum <"$1")" = "$(sha256sum <"$2")" ]; }

# train NAME ARGUMENTS...: submits, waits, leaves the losses in $tmp/NAME and the job's id in $job.
train() {
  local name=$1
  shift
  job=$(submit --set checkpoint.dir="$tmp/ckpt-$name" --set train.numerics=fast "$@" "${small[@]}")
  wait_done "$job" 300
  losses "$job" >"$tmp/$name"
}
