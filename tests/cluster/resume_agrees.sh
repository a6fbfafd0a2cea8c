# A run of 20 steps resumed to 40 ends with the tensors of a run of 40, bit for bit in canonical numerics, on the same and on any
# other number of workers.
. "$(dirname "$0")/lib.sh"
write_job
up
job=$(submit --set train.schedule=constant --set checkpoint.dir="$tmp/whole")
wait_done "$job"
hashes "$tmp/whole/step-40" >"$tmp/hashes-whole"
for w in 2 1 3; do
  job=$(submit --set train.schedule=constant --set train.steps=20 --set checkpoint.dir="$tmp/half-$w")
  wait_done "$job"
  next=$(dtctl resume "$job" --workers $w --steps 40 --detach -o json | jq -er .job)
  wait_done "$next"
  [ "$(losses "$next" | head -n 1 | cut -d' ' -f1)" = 21 ] || fail "the resumed run did not begin at step 21"
  hashes "$tmp/half-$w/step-40" >"$tmp/hashes-$w"
  cmp "$tmp/hashes-whole" "$tmp/hashes-$w" || fail "resumed on $w workers: other tensors than the whole run"
done
