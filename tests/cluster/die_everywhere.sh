# die_everywhere.sh FOLDER: a worker dies by its own hand in every kind of action, at every kind of op, before, within and after
# every collective, in a snapshot and in an evaluation (tests/parity/faults.c lists the places and proves that none is left out;
# FOLDER has it and the worker that dies). One job for each layout, which dies a hundred times or less: it goes on by itself each
# time, computes no loss another way than the job that nobody disturbed, and ends with its parameters, bit for bit.
. "$(dirname "$0")/lib.sh"
folder=$1
mkdir "$tmp/bin" "$tmp/places"
cp "$DTD_BIN"/{dtd,dtd-control,dtd-io,dtctl} "$tmp/bin"
cp "$folder/parity_mortal" "$tmp/bin/dt-worker"
DTD_BIN=$tmp/bin
# A step that was computed twice, in two epochs, has one line if it had one loss.
said() { jq -r '"\(.step) \(.loss) \(.grad_norm) \(.valid_loss)"' "$DTD_DIR/metrics/$1.jsonl" | sort -u | sort -n -s -k1,1; }
write_job
"$folder/parity_faults" "$tmp/job.yaml" "$tmp/places"
up
for table in "$tmp"/places/*.table; do
  layout=$(basename "$table" .table) deaths=$(wc -l <"$table")
  steps=$((deaths + 4)) # a step for each, from the third on
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
  [ "$died" = "$deaths" ] || fail "layout $layout: $died of $deaths deaths; the next: $(sed -n "$((died + 1))p" "$table")"
  # Two may die in one epoch, before the others are told of the first.
  status "$job" | jq -e ".restarts <= $deaths and .restarts * 2 >= $deaths" >/dev/null || { status "$job"; fail "layout $layout: a death that nobody noticed"; }
  said "$job" >"$tmp/losses"
  cmp "$tmp/quiet-losses" "$tmp/losses" || fail "layout $layout: other losses than the undisturbed run"
  hashes "$tmp/dead-$layout/step-$steps" >"$tmp/hashes"
  cmp "$tmp/quiet-hashes" "$tmp/hashes" || fail "layout $layout: another end than the undisturbed run"
  echo "layout $layout: $deaths deaths ($(tr '\n' ' ' <"${table%.table}.sets"))"
done
