# die_everywhere.sh FOLDER: a worker kills itself in every kind of action, at every kind of op, before, within and after
# every collective, in a snapshot and in an evaluation. tests/parity/faults.c lists these places and proves that the list
# is complete; FOLDER contains it and the worker that kills itself. There is one job for each layout, with up to a hundred
# kills. It continues by itself after each one; all its losses and its final parameters equal those of an undisturbed
# job, bit for bit.
. "$(dirname "$0")/lib.sh"
folder=$1
mkdir "$tmp/bin" "$tmp/places"
cp "$DTD_BIN"/{dtd,dtd-control,dtd-io,dtctl} "$tmp/bin"
cp "$folder/parity_mortal" "$tmp/bin/dt-worker"
DTD_BIN=$tmp/bin
# A step that was computed in two epochs has one line if both losses are equal.
said() { jq -r '"\(.step) \(.loss) \(.grad_norm) \(.valid_loss)"' "$DTD_DIR/metrics/$1.jsonl" | sort -u | sort -n -s -k1,1; }
write_job
"$folder/parity_faults" "$tmp/job.yaml" "$tmp/places"
up
for table in "$tmp"/places/*.table; do
  layout=$(basename "$table" .table) deaths=$(wc -l <"$table")
  # One step for each kill, beginning with the third step. An evaluation may be some steps away.
  steps=$((deaths + 4 + 4 * $(grep -c '^eval' "$table" || true)))
  common=(--set train.steps=$steps --set checkpoint.every=3 --set train.schedule=constant --set model.dim=32
    --set 'data.valid=[text.txt]' --set train.eval_every=1 --set train.eval_batches=1 --set run.restarts=$((deaths + 1)))
  while read -r set; do common+=(--set "$set"); done <"${table%.table}.sets"
  job=$(submit "${common[@]}" --set checkpoint.dir="$tmp/quiet-$layout")
  wait_done "$job" 300
  said "$job" >"$tmp/quiet-losses"
  hashes "$tmp/quiet-$layout/step-$steps" >"$tmp/quiet-hashes"

  head -c 4 /dev/zero >"$table.done"
  job=$(submit "${common[@]}" --set checkpoint.dir="$tmp/dead-$layout" --set run.env="{DTD_FAULTS: $table}")
  wait_done "$job" 900
  died=$(od -An -td4 "$table.done" | tr -d ' ')
  [ "$died" = "$deaths" ] || fail "layout $layout: $died of $deaths kills; the next one: $(sed -n "$((died + 1))p" "$table")"
  # Two workers may kill themselves in one epoch, before the others get the command to leave it.
  status "$job" | jq -e ".restarts <= $deaths and .restarts * 2 >= $deaths" >/dev/null || { status "$job"; fail "layout $layout: a kill without a restart"; }
  said "$job" >"$tmp/losses"
  cmp "$tmp/quiet-losses" "$tmp/losses" || fail "layout $layout: the losses differ from those of the undisturbed run"
  hashes "$tmp/dead-$layout/step-$steps" >"$tmp/hashes"
  cmp "$tmp/quiet-hashes" "$tmp/hashes" || fail "layout $layout: the final tensors differ from those of the undisturbed run"
  echo "layout $layout: $deaths deaths ($(tr '\n' ' ' <"${table%.table}.sets"))"
done
