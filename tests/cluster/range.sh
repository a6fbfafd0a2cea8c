# A job with a range of workers starts with the workers that have slots and shows the reason. When there are more slots, it
# grows at a checkpoint, without a restart. In canonical numerics its final tensors equal those of a run with all workers,
# bit for bit.
. "$(dirname "$0")/lib.sh"
write_job
printf 'slots: 4\n' >"$tmp/node.yaml"
"$DTD_BIN/dtd" --state-dir "$DTD_DIR" --config "$tmp/node.yaml" 2>"$tmp/dtd.err" &
wait_for 20 "dtd to answer" dtctl node
long=(--set train.steps=800 --set model.dim=128 --set checkpoint.every=40)
job=$(submit "${long[@]}" --set parallel.workers=4 --set checkpoint.dir="$tmp/large")
wait_done "$job" 120
hashes "$tmp/large/step-800" >"$tmp/large-hashes"

other=$(submit --set train.steps=100000 --set checkpoint.dir="$tmp/other")
wait_for 30 "job $other to run" reached "$other" 1
job=$(submit "${long[@]}" --set parallel='{workers: 4, min_workers: 1}' --set checkpoint.dir="$tmp/ranged")
wait_for 30 "job $job to run" reached "$job" 1
reason_has() { status "$1" | jq -e --arg text "$2" '.reason | contains($text)'; }
status "$job" | jq -e '.workers == 2 and .epoch == 1' >/dev/null || { status "$job"; fail "it does not start with two workers"; }
wait_for 10 "the reason" reason_has "$job" "runs with 2 of 4 workers; all of them need 4 slots"
dtctl cancel "$other" >/dev/null
wait_done "$job" 120
status "$job" | jq -e '.workers == 4 and .epoch == 2 and .restarts == 0' >/dev/null || { status "$job"; fail "it did not grow"; }
status "$job" | jq -e '.incident[0].decided | test("with 4 of 4 workers")' >/dev/null || { status "$job"; fail "no incident names the new number of workers"; }
hashes "$tmp/ranged/step-800" >"$tmp/ranged-hashes"
cmp "$tmp/large-hashes" "$tmp/ranged-hashes" || fail "the final tensors differ from those of a run with four workers"
