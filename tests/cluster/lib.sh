# Sourced by the end-to-end tests: a private dtd in a new folder, a small job, and functions for both. It needs DTD_BIN
# (the folder of the programs) and DTD_SOURCE. All processes end with the test.
set -euo pipefail
: "${DTD_BIN:?}" "${DTD_SOURCE:?}"
tmp=$(mktemp -d "${TMPDIR:-/tmp}/dtd-cluster-XXXXXX")
export DTD_DIR=$tmp/dtd XDG_CACHE_HOME=$tmp/cache DTD_LOG=${DTD_LOG:-info}
dtctl() { "$DTD_BIN/dtctl" "$@"; }

finish() {
  local rc=$?
  trap - EXIT
  if [ $rc -ne 0 ] && [ $rc -ne 77 ]; then
    echo "--- failed with $rc; logs of $DTD_DIR:"
    for f in "$DTD_DIR"/*.log "$DTD_DIR"/jobs/*/*.log; do [ -f "$f" ] && { echo "--- $f"; tail -n 40 "$f"; }; done
  fi
  dtctl down >/dev/null 2>&1 || { [ -s "$DTD_DIR/dtd.lock" ] && kill -9 "$(head -n 1 "$DTD_DIR/dtd.lock")" 2>/dev/null; } || true
  mountpoint -q "$tmp/small" 2>/dev/null && umount -l "$tmp/small"
  rm -rf "$tmp"
  exit $rc
}
trap finish EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
skip() { echo "skipped: $*"; exit 77; }

# wait_for SECONDS WHAT COMMAND...: until the command succeeds.
wait_for() {
  local end=$(($(date +%s) + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ "$(date +%s)" -lt $end ] || fail "timeout while waiting for: $what"
    sleep 0.05
  done
}

# Writes the file of a job that runs for a second or two. Tests change its keys by submit's --set.
write_job() {
  yes "a quick brown fox jumps over the lazy dog, twice" 2>/dev/null | head -n 400 >"$tmp/text.txt" || true
  cat >"$tmp/job.yaml" <<X
name: small
model: {arch: llama, dim: 64, layers: 2, heads: 4, kv_heads: 2, ffn: 128}
data: {train: [text.txt], valid: [], tokenizer: bytes}
train: {steps: 40, seq: 32, global_batch: 8, micro_batch: 2, lr: 1.0e-3, schedule: cosine, warmup: 4, weight_decay: 0.1,
        clip: 1.0, dtype: float32, numerics: canonical, eval_every: 0, seed: 1}
parallel: {workers: 2}
checkpoint: {dir: ckpt, every: 10, keep_last: 100}
run: {device: cpu, restarts: 3}
X
}
up() { dtctl up >/dev/null; }
submit() { (cd "$tmp" && dtctl submit job.yaml "$@" --detach -o json) | jq -er .job; }
status() { dtctl status "$1" -o json; }
state() { status "$1" | jq -r .state; }
step() { status "$1" | jq -r .step; }
is_state() { [ "$(state "$1")" = "$2" ]; }
status_epoch_steps() { status "$1" | jq -e ".epoch >= $2 and .state == \"running\" and (.last.epoch // 0) >= $2"; }
reached() { [ "$(step "$1")" -ge "$2" ]; }
ended() { case $(state "$1") in done | failed | canceled) ;; *) return 1 ;; esac; }
# wait_done JOB [SECONDS]
wait_done() {
  wait_for "${2:-60}" "the end of job $1" ended "$1"
  is_state "$1" done || { status "$1"; fail "job $1 is $(state "$1")"; }
}
worker_pid() { status "$1" | jq -er ".worker[] | select(.rank == $2) | .pid"; }
pid_of() { # supervisor | control | io
  case $1 in
  supervisor) head -n 1 "$DTD_DIR/dtd.lock" ;;
  control) pgrep -P "$(pid_of supervisor)" -x dtd-control ;;
  io) pgrep -P "$(pid_of supervisor)" -x dtd-io ;;
  esac
}
# The tensors of a step folder with their hashes; equal lines mean equal bits.
hashes() { dtctl ckpt inspect "$1" -o json | jq -r '.tensors[] | "\(.name) \(.sha256)"' | sort; }
losses() { dtctl metrics "$1" -o jsonl | jq -r '"\(.step) \(.loss)"' | sort -n; }
