# The choices of routers between jobs: experts with a capacity drop the same number of choices in every layout, and
# `dtctl metrics` shows it; a job in another layout and type takes the choices that another one saved, also after a
# resume in the middle; a job whose steps were not saved fails and names the folder.
. "$(dirname "$0")/lib.sh"
write_job
up
set=(--set model.experts=3 --set model.experts_per_token=1 --set model.router=switch --set model.expert_capacity=0.75
  --set model.aux_loss=0.01 --set train.steps=4 --set train.schedule=constant --set checkpoint.every=2)
run() { # run FOLDER SETS..: trains to the end
  local to=$1
  shift
  job=$(submit "${set[@]}" "$@" --set checkpoint.dir="$tmp/$to" 2>"$tmp/notes") || fail "$(cat "$tmp/notes")"
  wait_done "$job"
}
dropped() { dtctl metrics "$job" -o jsonl | jq -er '"\(.step) \(.expert_dropped)"' | sort -n | tail -n "${1:-4}"; }

proof=(--set train.numerics=proof --set train.dtype=float64)
run whole "${proof[@]}" --set parallel.workers=1 --set train.save_routing="$tmp/routing"
dropped >"$tmp/dropped"
[ "$(awk '$2 > 0' "$tmp/dropped" | wc -l)" = 4 ] || fail "no choices were dropped: $(cat "$tmp/dropped")"
for layout in 'tp=2' 'tp=2 ep=2' 'pp=2' 'cp=2 ep=2' 'fsdp=2 zero=3'; do
  keys=(--set parallel.workers=2)
  for key in $layout; do keys+=(--set "parallel.$key"); done
  run "of-$layout" "${proof[@]}" "${keys[@]}"
  dropped | cmp - "$tmp/dropped" || fail "$layout: other numbers of choices dropped than one worker: $(dropped)"
done

# Kept by position, a choice is dropped because of earlier choices only: with the same choices as many are dropped.
fast=(--set train.numerics=fast)
two=("${fast[@]}" --set parallel.workers=2 --set parallel.fsdp=2 --set parallel.ep=2)
run narrow "${two[@]}" --set train.replay_routing="$tmp/routing" --set train.save_routing="$tmp/again" --set train.lr=0.1
dropped | cmp - "$tmp/dropped" || fail "the choices of another job are not used: $(dropped)"
run wide "${proof[@]}" --set parallel.workers=2 --set parallel.cp=2 --set train.lr=0.1 --set train.replay_routing="$tmp/again"
dropped | cmp - "$tmp/dropped" || fail "the choices of another job are not used in float64: $(dropped)"

# One worker continues what two began, and saves over their later steps.
run resumed "${fast[@]}" --set parallel.workers=1 --set train.replay_routing="$tmp/routing" --set train.save_routing="$tmp/again" --set train.lr=0.1 \
  --set checkpoint.resume_from="$tmp/narrow/step-2"
dropped 2 | cmp - <(tail -n 2 "$tmp/dropped") || fail "a resumed job has other choices: $(dropped 2)"
[ "$(cd "$tmp/again" && echo step-*/*)" = 'step-1/0-of-2 step-1/1-of-2 step-2/0-of-2 step-2/1-of-2 step-3/0-of-1 step-4/0-of-1' ] ||
  fail "files of routing: $(cd "$tmp/again" && echo step-*/*)"

job=$(submit "${set[@]}" "${fast[@]}" --set train.steps=5 --set train.replay_routing="$tmp/again" --set run.restarts=0 \
  --set checkpoint.dir="$tmp/longer" 2>"$tmp/notes") || fail "$(cat "$tmp/notes")"
wait_for 60 "a job ends whose step 5 was not saved" ended "$job"
is_state "$job" failed || fail "a job whose step 5 was not saved is $(state "$job")"
dtctl why "$job" | grep -q "$tmp/again/step-5 has no files: step 5 was not saved there" || fail "$(dtctl why "$job")"
