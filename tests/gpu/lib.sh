# Sourced by the scripts of this folder: skips without a GPU, trains jobs, compares losses, and checks a run's need of memory.
. "$(dirname "${BASH_SOURCE[0]}")/../cluster/lib.sh"
probe=$("$DTD_BIN/dt-worker" --probe)
[ "$(jq '.gpus | length' <<<"$probe")" -gt 0 ] || skip "$(jq -r .gpu_missing <<<"$probe")"

# A rehearsal on stand-ins trains a model that an emulated GPU computes in milliseconds.
small=()
[ -z "${DTD_GPU_STAND_IN:-}" ] || small=(--set model.dim=32 --set model.layers=1 --set model.heads=1 --set model.ffn=32 --set train.seq=16
  --set train.global_batch=4 --set train.micro_batch=1)

# near WHAT A B TOLERANCE: compares two files of lines "step loss": the same steps, losses within a relative tolerance.
near() {
  local worst
  [ "$(cut -d' ' -f1 "$2")" = "$(cut -d' ' -f1 "$3")" ] || fail "$1: the steps differ"
  worst=$(paste -d' ' "$2" "$3" | awk '{d = ($2 - $4) / $2; if (d < 0) d = -d; if (d > w) w = d} END {print w + 0}')
  awk "BEGIN {exit !($worst <= $4)}" || { paste -d' ' "$2" "$3"; fail "$1: losses differ by $worst, allowed is $4"; }
  echo "$1: $(wc -l <"$2") losses within $worst of each other (allowed $4)"
}

# A minimal machine has no cmp.
same_bits() { [ "$(sha256sum <"$1")" = "$(sha256sum <"$2")" ]; }

# train NAME ARGUMENTS...: submits a job, waits for it, and leaves its losses in $tmp/NAME and its id in $job. Every job saves at
# its end. Unless `keep` is set, its checkpoints are removed, because the next job may need the disk space.
train() {
  local name=$1
  shift
  job=$(submit --set checkpoint.dir="$tmp/ckpt-$name" --set train.numerics=fast "$@" "${small[@]}")
  wait_done "$job" 300
  losses "$job" >"$tmp/$name"
  [ -n "${keep:-}" ] || rm -rf "$tmp/ckpt-$name"
}

free_disk() { df --output=avail -B1 "$tmp" | tail -n 1; }
free_gpu() { jq '.gpus[0].free_bytes // 0' <<<"$probe"; }

# lack DEVICE ARGUMENTS...: prints "needs 40.3 GB of memory and there are 8.1; ..": the resources that a job of one worker needs
# according to `dtctl plan`, with one save in $tmp, and that this machine lacks. Prints nothing if the machine has enough.
lack() {
  local plan device=$1 on_disk=1
  shift
  plan=$(dtctl plan "$tmp/job.yaml" --set run.device="$device" --set train.numerics=fast "$@" "${small[@]}" -o json) || fail "no plan: $*"
  [ "$(stat -f -c %T "$tmp")" != tmpfs ] || on_disk=0 # saves are in memory
  jq -r --argjson disk "$(free_disk)" --argjson gpu "$(free_gpu)" --argjson on_disk $on_disk --arg tmp "$tmp" '
    def gb(round): . / 1e8 | round / 10;
    .memory_per_worker as $m
    | [["memory", $m.node + (1 - $on_disk) * $m.snapshot, .node_bytes], ["disk for \($tmp)", $m.snapshot, $disk], ["memory of the GPU", $m.device, $gpu]]
    | map(select(.[1] > .[2]) | "needs \(.[1] | gb(ceil)) GB of \(.[0]) and there are \(.[2] | gb(floor))") | join("; ")' <<<"$plan"
}
