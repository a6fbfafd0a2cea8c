# The real programs with run.device cuda, on a processor: the modules dtd-cuda.so and dtd-nccl.so of the build's cuda-host
# folder use stand-ins of the vendor's libraries. Jobs of one worker and of two, over host staging and over NCCL, agree with
# a CPU job except for rounding. A killed worker ends the epoch but not the process of the other worker, and the result is
# bit-identical to that of an undisturbed job. A checkpoint moves from GPU to CPU workers and back.
. "$DTD_SOURCE/tests/cluster/lib.sh"
modules=${DTD_CUDA_HOST:?}
[ -e "$modules/dtd-cuda.so" ] && [ -e "$modules/dtd-nccl.so" ] || skip "this build has no $modules/dtd-cuda.so (ninja cuda-host)"
mkdir -p "$DTD_DIR"
yes "a quick brown fox jumps over the lazy dog, twice" 2>/dev/null | head -n 400 >"$tmp/text.txt" || true
cat >"$tmp/job.yaml" <<X
name: stand-ins
model: {arch: llama, dim: 32, layers: 1, heads: 1, kv_heads: 1, ffn: 32}
data: {train: [text.txt], valid: [], tokenizer: bytes}
train: {steps: 6, seq: 16, global_batch: 2, micro_batch: 1, lr: 1.0e-3, warmup: 2, clip: 1.0, seed: 1}
parallel: {workers: 2}
checkpoint: {dir: ckpt, every: 3, keep_last: 100}
run: {device: cuda, workers_per_gpu: 2, restarts: 3, env: {DTD_MODULE_DIR: "$modules"}}
X
echo 'gpus: "1"' >"$tmp/node.yaml"
"$DTD_BIN/dtd" --config "$tmp/node.yaml" --state-dir "$DTD_DIR" >/dev/null 2>&1 &
wait_for 20 "dtd to respond" dtctl status

# train NAME SETS...: the job's losses in $tmp/NAME.
train() {
  local name=$1
  shift
  job=$(submit --set checkpoint.dir="$tmp/ckpt-$name" "$@")
  wait_done "$job" 100
  losses "$job" >"$tmp/$name"
}
# near NAME NAME BOUND: relative differences of the losses of the same steps.
near() {
  join "$tmp/$1" "$tmp/$2" | awk -v bound="$3" -v what="$1 and $2" '
    { d = ($2 - $3) / $2; d = d < 0 ? -d : d; worst = d > worst ? d : worst; n++ }
    END { printf "%s: worst relative difference of %d losses %.2g\n", what, n, worst; exit !(n > 0 && worst <= bound) }' ||
    fail "$1 and $2 are not the same training"
}

train cpu --set run.device=cpu --set run.workers_per_gpu=1
train one --set parallel.workers=1
train staged --set run.comm=staged
train nccl --set run.comm=nccl
grep -q "device kind=cuda" "$DTD_DIR/jobs/$job/rank-1.log" || fail "the workers did not compute on the device"
train bf16 --set train.dtype=bfloat16
near cpu one 1e-5
near one staged 1e-5
cmp "$tmp/staged" "$tmp/nccl" || fail "two addends have one sum, but staging and NCCL differ"
near one bf16 1e-2

# The host does not see what happens on the device: the time of a rank comes from a step that is measured there.
job=$(submit --set run.comm=staged --set train.steps=1000000 --set checkpoint.every=0 --set checkpoint.dir="$tmp/usage")
measured() { dtctl metrics "$job" --ranks -o json | jq -e 'length > 0 and (.[-1] | .compute_s != null and all(.compute_s[]; . > 0) and all(.comm_s[]; . > 0))'; }
wait_for 60 "usage of ranks on the device" measured
dtctl cancel "$job" >/dev/null
wait_for 60 "its end" ended "$job"

for comm in staged nccl; do
  train "quiet-$comm" --set run.comm=$comm --set train.steps=40 --set checkpoint.every=5
  job=$(submit --set run.comm=$comm --set train.steps=40 --set checkpoint.every=5 --set checkpoint.dir="$tmp/killed-$comm")
  wait_for 60 "step 12" reached "$job" 12
  survivor=$(worker_pid "$job" 0)
  kill -9 "$(worker_pid "$job" 1)"
  wait_done "$job" 100
  status "$job" | jq -e '.epoch >= 2 and .restarts == 1' >/dev/null || { status "$job"; fail "no second epoch over $comm"; }
  [ "$(grep -c "epoch begins" "$DTD_DIR/jobs/$job/rank-0.log")" -ge 2 ] || fail "rank 0 did not begin a second epoch"
  grep "epoch begins" "$DTD_DIR/jobs/$job/rank-0.log" | grep -vq "\[$survivor\]" && fail "rank 0 left its process"
  cmp <(hashes "$tmp/ckpt-quiet-$comm/step-40") <(hashes "$tmp/killed-$comm/step-40") || fail "the killed job ended with different bits over $comm"
done

# resume NAME FROM STEPS DEVICE WORKERS_PER_GPU
resume() {
  job=$(dtctl resume "$2" --steps "$3" --set run.device="$4" --set run.workers_per_gpu="$5" --set run.comm=auto \
    --set checkpoint.dir="$tmp/ckpt-$1" --detach -o json | jq -er .job)
  wait_done "$job" 100
  losses "$job" >"$tmp/$1"
}
# All these jobs shared one algorithm file, in which each product occurs once. Times are noise here, so jobs with separate
# files would have had different bits.
algorithms=$(echo "$XDG_CACHE_HOME"/dtd/data/algorithms/*.txt)
grep '^[0-9]' "$algorithms" | cut -d' ' -f1-17 | sort >"$tmp/keys"
[ "$(wc -l <"$tmp/keys")" -gt 5 ] && [ -z "$(uniq -d "$tmp/keys")" ] || fail "a product's algorithm was not chosen once: $(cat "$algorithms")"

first=$job
resume on-cuda "$first" 46 cuda 2
resume on-cpu "$first" 46 cpu 1
near on-cuda on-cpu 1e-5
resume back "$job" 49 cuda 2
[ "$(wc -l <"$tmp/back")" = 3 ] || fail "the job did not continue the CPU's checkpoint for three steps: $(cat "$tmp/back")"
