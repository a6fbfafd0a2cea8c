# A checkpoint moves from float32 to bfloat16 and back, on other layouts: its parameters and moments stay float32, and the
# losses stay near those of a run in float32. A processor without instructions for products in bfloat16 is reported once per
# job, by rank 0, whatever the number of epochs.
. "$(dirname "$0")/lib.sh"
write_job
export ONEDNN_MAX_CPU_ISA=AVX2 # as on a processor without AVX512_BF16 and AMX
up
common=(--set train.schedule=constant --set train.numerics=fast)
whole=$(submit "${common[@]}" --set checkpoint.dir="$tmp/whole")
wait_done "$whole"

job=$(submit "${common[@]}" --set train.steps=10 --set checkpoint.dir="$tmp/moved")
wait_done "$job"
losses "$job" >"$tmp/losses"
next() { # STEPS SETS...
  local steps=$1
  shift
  job=$(dtctl resume "$job" --workers 2 --steps "$steps" "$@" --detach -o json | jq -er .job)
  wait_done "$job"
  losses "$job" >>"$tmp/losses"
}
next 25 --set train.dtype=bfloat16 --set parallel.tp=2
[ "$(cat "$DTD_DIR/jobs/$job"/rank-*.log | grep -c "bfloat16 saves memory but no time")" = 1 ] ||
  fail "not one of the workers' logs has the processor's lack of instructions"
dtctl ckpt inspect "$tmp/moved/step-20" -o json | jq -e '[.tensors[] | select(.dtype != "float32")] == []' >/dev/null ||
  fail "a checkpoint of a job in bfloat16 has tensors that are not float32"
next 40 --set train.dtype=float32 --set parallel.tp=1 --set parallel.fsdp=2 --set parallel.zero=3
[ "$(cut -d' ' -f1 "$tmp/losses" | sort -nu | wc -l)" = 40 ] || fail "the three jobs have not trained 40 steps"
join <(losses "$whole" | sort -k1,1) <(sort -k1,1 "$tmp/losses") |
  awk '{ d = $2 - $3; if (d < 0) d = -d; if (d > 0.01 * $2) { print; bad = 1 } n++ } END { exit bad || n != 40 }' ||
  fail "after changes of the type the losses differ from those in float32"

job=$(submit "${common[@]}" --set train.dtype=bfloat16 --set train.steps=200000 --set checkpoint.dir="$tmp/killed")
wait_for 30 "step 3" reached "$job" 3
kill -9 "$(worker_pid "$job" 1)"
wait_for 30 "the second epoch" status_epoch_steps "$job" 2
[ "$(cat "$DTD_DIR/jobs/$job"/rank-*.log | grep -c "bfloat16 saves memory but no time")" = 1 ] ||
  fail "the second epoch repeats the report"
dtctl cancel "$job" >/dev/null
