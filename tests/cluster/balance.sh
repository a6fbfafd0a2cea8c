# Biases of experts and the numbers of the last step through checkpoints: in float64 they have the same bits in every
# layout, resumed in the middle or not; a float32 job that resumes reaches the tensors of an uninterrupted run. The
# losses of the routers are the same in every layout. A job that would drop trained biases is refused, and so is one
# that has biases when its checkpoint has none.
. "$(dirname "$0")/lib.sh"
write_job
up
set=(--set model.experts=3 --set model.experts_per_token=2 --set model.router=sigmoid --set model.router_norm=true --set train.steps=6
  --set train.schedule=constant --set checkpoint.every=3 --set model.z_loss=0.001)
balanced=("${set[@]}" --set model.expert_bias=0.01 --set model.aux_loss=0.05 --set model.aux_scope=batch)
run() { # run FOLDER SETS..: trains to the end
  local to=$1
  shift
  job=$(submit "$@" --set checkpoint.dir="$tmp/$to" 2>"$tmp/notes") || fail "$(cat "$tmp/notes")"
  wait_done "$job"
}
states() { hashes "$tmp/$1/step-6" | grep 'moe[.]expert_'; }
routers() { # the last three steps
  dtctl metrics "$job" -o jsonl | jq -er '"\(.step) \(.aux_loss * 1e8 | round) \(.z_loss * 1e9 | round)"' | sort -n | tail -n 3
}

proof=("${balanced[@]}" --set train.numerics=proof --set train.dtype=float64)
run whole "${proof[@]}"
states whole >"$tmp/states"
routers >"$tmp/routers"
[ "$(wc -l <"$tmp/states")" = 4 ] || fail "not two states in each of two layers: $(cat "$tmp/states")"
for layout in 'tp=2' 'tp=2 ep=2' 'pp=2' 'cp=2' 'fsdp=2 zero=3'; do
  keys=(--set parallel.workers=2)
  for key in $layout; do keys+=(--set "parallel.$key"); done
  run "of-$layout" "${proof[@]}" "${keys[@]}" --set checkpoint.resume_from="$tmp/whole/step-3"
  states "of-$layout" | cmp - "$tmp/states" || fail "$layout: other biases or numbers than one worker"
  routers | cmp - "$tmp/routers" || fail "$layout: other losses of routers than one worker: $(routers)"
done

two=("${balanced[@]}" --set parallel.workers=2 --set parallel.fsdp=2 --set parallel.zero=2)
run narrow "${two[@]}"
run again "${two[@]}" --set checkpoint.resume_from="$tmp/narrow/step-3"
cmp <(hashes "$tmp/narrow/step-6") <(hashes "$tmp/again/step-6") || fail "a resumed job has other tensors"
dtctl status "$job" | grep -q 'Aux loss' || fail "status does not show the auxiliary loss"

run fast "${balanced[@]}" --set train.numerics=fast --set parallel.workers=2 --set parallel.fsdp=2 --set parallel.zero=3
dtctl ckpt inspect "$tmp/fast/step-6" -o json |
  jq -e '[.tensors[] | select(.name | endswith(".moe.expert_bias")) | .dtype] == ["float32", "float32"]' >/dev/null ||
  fail "the biases are not float32"

refused() { # refused SENTENCE SETS..
  local sentence=$1
  shift
  submit "$@" --set checkpoint.dir="$tmp/refused" 2>"$tmp/notes" && fail "not refused: $*"
  grep -q "$sentence" "$tmp/notes" || fail "$(cat "$tmp/notes")"
}
run plain "${set[@]}"
refused 'Set model.expert_bias to its rate' "${set[@]}" --set checkpoint.resume_from="$tmp/fast/step-3"
refused 'set model.expert_bias to 0' "${set[@]}" --set model.expert_bias=0.01 --set checkpoint.resume_from="$tmp/plain/step-3"
refused 'set model.aux_scope to sample or micro_batch' "${set[@]}" --set model.aux_loss=0.01 --set model.aux_scope=batch \
  --set checkpoint.resume_from="$tmp/plain/step-3"
