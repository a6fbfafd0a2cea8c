# A job changes its layout: after 15 steps sharded, 15 as a pipeline and 10 on replicas, in canonical numerics, it has the
# tensors of a run of 40 steps on one worker, bit for bit. With layers split over workers (tp, cp) its losses are equal up
# to rounding, and its checkpoint can be resumed, too.
. "$(dirname "$0")/lib.sh"
write_job
up
next() { # JOB STEPS WORKERS SETS...
  local job=$1 steps=$2 workers=$3
  shift 3
  dtctl resume "$job" --workers "$workers" --steps "$steps" "$@" --detach -o json | jq -er .job
}
plain=(--set parallel.fsdp=1 --set parallel.zero=0 --set parallel.tp=1 --set parallel.pp=1 --set parallel.cp=1)
common=(--set train.schedule=constant --set train.verify_every=1)
whole=$(submit "${common[@]}" --set parallel.workers=1 --set checkpoint.dir="$tmp/whole")
wait_done "$whole"
hashes "$tmp/whole/step-40" >"$tmp/hashes-whole"

job=$(submit "${common[@]}" --set train.steps=15 --set checkpoint.dir="$tmp/moved" --set parallel.workers=2 \
  --set parallel.fsdp=2 --set parallel.zero=3)
wait_done "$job"
job=$(next "$job" 30 2 "${plain[@]}" --set parallel.pp=2)
wait_done "$job"
job=$(next "$job" 40 3 "${plain[@]}")
wait_done "$job"
[ "$(losses "$job" | head -n 1 | cut -d' ' -f1)" = 31 ] || fail "the last run did not begin at step 31"
hashes "$tmp/moved/step-40" >"$tmp/hashes-moved"
cmp "$tmp/hashes-whole" "$tmp/hashes-moved" || fail "after changes of the layout the tensors differ from those of the whole run"

job=$(submit "${common[@]}" --set train.steps=20 --set checkpoint.dir="$tmp/cut" --set parallel.workers=4 \
  --set parallel.tp=2 --set parallel.cp=2)
wait_done "$job"
losses "$job" >"$tmp/losses-cut"
job=$(next "$job" 40 4 "${plain[@]}" --set parallel.tp=2 --set parallel.pp=2 --set parallel.schedule=gpipe)
wait_done "$job"
losses "$job" >>"$tmp/losses-cut"
join <(losses "$whole" | sort -k1,1) <(sort -k1,1 "$tmp/losses-cut") |
  awk '{ d = $2 - $3; if (d < 0) d = -d; if (d > 1e-4 * $2) { print; bad = 1 } n++ } END { exit bad || n != 40 }' ||
  fail "with split layers the losses differ from those of one worker"
