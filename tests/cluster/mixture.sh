# A mixture of three sources, of which one leaves during the run: resumed on other numbers of workers, it ends with the
# tensors of a whole run, bit for bit, and a resume with other weights is refused unless data.order is new.
. "$(dirname "$0")/lib.sh"
write_job
for i in 1 2 3; do
  mkdir "$tmp/source-$i"
  head -c $((20000 * i)) /usr/share/common-licenses/GPL-3 >"$tmp/source-$i/a.txt"
  tail -c 9000 /usr/share/common-licenses/GPL-2 >"$tmp/source-$i/b.txt"
done
up
mix=(--set train.schedule=constant --set data.train="[$tmp/source-1/*.txt, $tmp/source-2/*.txt, $tmp/source-3/*.txt]"
  --set data.weights='[0.5, 0.3, 0.2]' --set data.passes='[0, 1, 0]' --set train.seq=512)
job=$(submit "${mix[@]}" --set checkpoint.dir="$tmp/whole")
wait_done "$job"
hashes "$tmp/whole/step-40" >"$tmp/hashes-whole"
for w in 1 3; do
  job=$(submit "${mix[@]}" --set train.steps=20 --set checkpoint.dir="$tmp/half-$w")
  wait_done "$job"
  if dtctl resume "$job" --steps 40 --detach --set data.weights='[0.5, 0.3, 0.3]' 2>"$tmp/refused"; then
    fail "a resume took other weights"
  fi
  grep -q 'data.weights: .*--set data.order=new' "$tmp/refused" || fail "the refusal: $(cat "$tmp/refused")"
  next=$(dtctl resume "$job" --workers $w --steps 40 --detach -o json | jq -er .job)
  wait_done "$next"
  hashes "$tmp/half-$w/step-40" >"$tmp/hashes-$w"
  cmp "$tmp/hashes-whole" "$tmp/hashes-$w" || fail "resumed on $w workers, the tensors differ from those of the whole run"
done
