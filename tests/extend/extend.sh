# Checks that additions change exactly the files in the tables of CONTRIBUTING.md and ARCHITECTURE.md. Each patch of this folder adds
# one thing to a copy of the sources by the files of its row, and the programs built from the copy must then have it.
cache=${XDG_CACHE_HOME:-$HOME/.cache}
. "$(dirname "$0")/../cluster/lib.sh"
here=$(cd "$(dirname "$0")" && pwd)
tree=$tmp/tree

# add PATCH THING: applies PATCH.patch. It must touch exactly the files, and the folders of new files, that the row THING names, and
# their number must be that of the row.
add() {
  local row counted touched named
  row=$(cat "$tree/ARCHITECTURE.md" "$tree/CONTRIBUTING.md" | grep "^| $2 |") || fail "no table has a row for: $2"
  [ "$(wc -l <<<"$row")" = 1 ] || fail "the tables have more than one row for: $2"
  counted=$(cut -d'|' -f3 <<<"$row" | tr -d ' ')
  named=$(cut -d'|' -f4 <<<"$row" | grep -oE '`[a-z]+/[^`]+`' | tr -d '`' | sort)
  touched=$(awk '/^--- /{old = $2} /^\+\+\+ b\//{f = substr($2, 3); if (old == "/dev/null") sub("/[^/]*$", "", f); print f}' "$here/$1.patch" | sort)
  [ "$touched" = "$named" ] || fail "$1.patch touches"$'\n'"$touched"$'\n'"and the row \"$2\" names"$'\n'"$named"
  [ "$(wc -l <<<"$touched")" = "$counted" ] || fail "$1.patch touches $(wc -l <<<"$touched") files, and the row \"$2\" counts $counted"
  patch --directory="$tree" -p1 --fuzz=0 --silent <"$here/$1.patch" || fail "$1.patch does not apply: adapt it to the sources"
}

mkdir "$tree"
tar -C "$DTD_SOURCE" --exclude=./build --exclude=./.git -cf - . | tar -C "$tree" -xf -
add schedule "a schedule"
add metric "a metric"
add model "a model"
add incident "a field of incidents"

# With paths relative to the copy, a compiler cache finds the objects that an earlier run compiled in another folder.
export XDG_CACHE_HOME=$cache CCACHE_BASEDIR=$tmp
cmake -S "$tree" -B "$tmp/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DDTD_CUDA=OFF >"$tmp/log" 2>&1 &&
  cmake --build "$tmp/build" --target dtd dtd-control dtd-io dt-worker dtctl >>"$tmp/log" 2>&1 ||
  { tail -n 40 "$tmp/log"; fail "the copy with the additions does not build"; }
export XDG_CACHE_HOME=$tmp/cache
DTD_BIN=$tmp/build/bin

# The schedule: `serial` finishes a microbatch before it starts the next, so one of two ranks always waits. 1f1b avoids this in most
# slots. The sums are the same.
write_job
bubble() { dtctl plan "$tmp/job.yaml" "${pipe[@]}" --set parallel.schedule="$1" -o json | jq -e .forecast.bubble; }
pipe=(--set parallel.workers=2 --set parallel.pp=2 --set train.steps=3 --set train.warmup=0)
serial=$(bubble serial) && usual=$(bubble 1f1b) || fail "dtctl plan fails with the new schedule"
jq -en "$serial > $usual + 0.1" >/dev/null || fail "serial has a bubble of $serial, 1f1b one of $usual"
up
for schedule in 1f1b serial; do
  rm -rf "$tmp/ckpt"
  job=$(submit "${pipe[@]}" --set parallel.schedule="$schedule")
  wait_done "$job"
  losses "$job" >"$tmp/$schedule"
done
[ "$(wc -l <"$tmp/serial")" = 3 ] || fail "the job with the new schedule does not have 3 metrics"
cmp "$tmp/1f1b" "$tmp/serial" || fail "the new schedule computes different losses"

# The metric: every step has it with the correct value in JSON, and the table has its column.
dtctl metrics "$job" -o jsonl >"$tmp/metrics"
jq -es 'length == 3 and all(.samples_per_s * .step_s | . > 7.99 and . < 8.01)' "$tmp/metrics" >/dev/null ||
  { cat "$tmp/metrics"; fail "samples_per_s is missing or wrong"; }
grep -q '"samples_per_s"' "$DTD_DIR/metrics/$job.jsonl" || fail "the metrics file has no samples_per_s"
dtctl metrics "$job" | grep -q 'SAMPLES/S' || fail "dtctl metrics has no column for the new metric"

# The model trains, also after one of its workers has been killed, and the incident has the new field.
rm -rf "$tmp/ckpt"
job=$(submit --set model.arch=mlp --set model.kv_heads=0 --set model.ffn=0 --set train.steps=4000 --set checkpoint.every=500)
wait_for 60 "step 60" reached "$job" 60
kill -9 "$(worker_pid "$job" 1)"
wait_done "$job" 120
dtctl metrics "$job" -o jsonl | jq -es 'sort_by(.step) | .[0].loss - .[-1].loss > 1' >/dev/null || fail "the new model does not learn"
dtctl why "$job" -o json | jq -e '[.. | .workers? // empty] | any(. == 2)' >/dev/null ||
  { dtctl why "$job" -o json; fail "dtctl why has no field for the number of workers"; }
dtctl why "$job" | grep -qE '^ *workers +2$' || { dtctl why "$job"; fail "dtctl why prints no line for the number of workers"; }
