# A pipeline with parallel.post_validation has the tensors, losses and norms of one that waits for the norm, bit for bit:
# with a norm that clips in some steps, evaluations, saves, a measured step, and after kill -9 of a worker.
. "$(dirname "$0")/lib.sh"
write_job
up
pipe=(--set parallel.workers=2 --set parallel.pp=2 --set parallel.schedule=zb-h2 --set train.steps=240 --set train.numerics=fast
  --set run.threads=1 --set "data.valid=[$tmp/text.txt]" --set train.eval_every=35 --set checkpoint.every=50 --set run.timeline_step=20)
values() { dtctl metrics "$1" -o jsonl | jq -r '"\(.step) \(.loss) \(.grad_norm) \(.valid_loss)"' | sort -n; }

job=$(submit "${pipe[@]}" --set train.clip=0 --set train.steps=60 --set checkpoint.dir="$tmp/norms")
wait_done "$job"
clip=$(dtctl metrics "$job" -o jsonl | jq -s 'map(.grad_norm) | sort | .[length / 2 | floor]')
pipe+=(--set train.clip="$clip")

job=$(submit "${pipe[@]}" --set checkpoint.dir="$tmp/waits")
wait_done "$job" 120
values "$job" >"$tmp/values-waits"
hashes "$tmp/waits/step-240" >"$tmp/hashes-waits"
clipped=$(dtctl metrics "$job" -o jsonl | jq -s "map(select(.grad_norm > $clip)) | length")
[ "$clipped" -gt 10 ] && [ "$clipped" -lt 230 ] || fail "the norm clips in $clipped of 240 steps"

pipe+=(--set parallel.post_validation=true)
job=$(submit "${pipe[@]}" --set checkpoint.dir="$tmp/early")
wait_done "$job" 120
values "$job" >"$tmp/values-early"
hashes "$tmp/early/step-240" >"$tmp/hashes-early"
cmp "$tmp/values-waits" "$tmp/values-early" || fail "losses or norms differ from those of the job that waits"
cmp "$tmp/hashes-waits" "$tmp/hashes-early" || fail "the tensors differ from those of the job that waits"
hashes "$tmp/waits/step-200" >"$tmp/hashes-waits-200"
hashes "$tmp/early/step-200" | cmp "$tmp/hashes-waits-200" || fail "the tensors of step 200 differ"
dtctl plan "$tmp/job.yaml" "${pipe[@]}" -o json | jq -e '.ranks[0].kept * 5 == .ranks[0].optimizer * 3' >/dev/null ||
  fail "the plan does not show the copy of parameters and moments"
dtctl plan "$tmp/job.yaml" "${pipe[@]}" --measured "$tmp/early" >"$tmp/plan"
grep -q "Measured   step 20 of epoch 1" "$tmp/plan" || { cat "$tmp/plan"; fail "the step was not measured"; }

job=$(submit "${pipe[@]}" --set checkpoint.dir="$tmp/killed")
wait_for 60 "step 110" reached "$job" 110
kill -9 "$(worker_pid "$job" 1)"
wait_done "$job" 120
status "$job" | jq -e '.epoch >= 2 and .restarts == 1' >/dev/null || { status "$job"; fail "no second epoch"; }
hashes "$tmp/killed/step-240" | cmp "$tmp/hashes-waits" || fail "after kill -9 the tensors differ"

# Without clipping every step receives as many bytes as the plan states, whichever step runs its slots.
pipe+=(--set parallel.workers=3 --set parallel.pp=3 --set model.layers=3) # a rank of two receives none ahead
job=$(submit "${pipe[@]}" --set train.clip=0 --set train.steps=20 --set checkpoint.dir="$tmp/bytes")
wait_done "$job"
dtctl metrics "$job" -o jsonl | jq -ce .bytes | sort -u >"$tmp/counted"
dtctl plan "$tmp/job.yaml" "${pipe[@]}" -o json | jq -ce .forecast.bytes | cmp "$tmp/counted" || { cat "$tmp/counted"; fail "the bytes differ from those of the plan"; }
