# The newest checkpoint is damaged: a job continues from the next older one, reports that, and ends with the parameters of
# a run without damage. If the user named a damaged step, the job fails instead.
. "$(dirname "$0")/lib.sh"
write_job
up
job=$(submit --set train.steps=50 --set checkpoint.dir=whole --set name=whole --set train.schedule=constant)
wait_done "$job" 120
hashes "$tmp/whole/step-50" >"$tmp/expected"

part() { ls "$1"/__1_0.distcp; }
flip() {
  local size offset byte
  size=$(stat -c %s "$1") offset=$((size / 2))
  byte=$(od -An -tu1 -j $offset -N 1 "$1" | tr -d ' ')
  printf "\\x$(printf %x $((byte ^ 4)))" | dd of="$1" bs=1 seek=$offset conv=notrunc status=none
}
cut_short() { truncate -s 100 "$1"; }
become_folder() { rm "$1" && mkdir "$1"; }

first=$(submit --set checkpoint.dir=first --set name=first --set train.schedule=constant)
wait_done "$first" 120
resume_damaged() { # DAMAGE: of step-40; the job continues from step-30
  rm -rf "$tmp/ckpt" && cp -a "$tmp/first" "$tmp/ckpt"
  $1 "$(part "$tmp/ckpt/step-40")"
  job=$(dtctl resume "$tmp/ckpt" --steps 50 --detach -o json 2>"$tmp/notes" | jq -er .job) || fail "$1: not resumed"
  wait_done "$job" 120
  hashes "$tmp/ckpt/step-50" | diff - "$tmp/expected" >/dev/null || fail "$1: other parameters than without damage"
  dtctl why "$job" >"$tmp/why"
  ls -d "$tmp"/ckpt/step-40.e* >/dev/null || fail "$1: the damaged checkpoint is not kept"
  dtctl ckpt verify "$tmp/ckpt/step-40" >/dev/null || fail "$1: step 40 is not saved again"
}
# found while it is loaded
for damage in flip; do
  resume_damaged $damage
  grep -q "step 40 cannot be read: .*__1_0.distcp" "$tmp/why" || fail "$damage: the damage is not reported with its file"
  grep -q "from step 30; the damaged checkpoint of step 40 is put aside" "$tmp/why" || fail "$damage: the loss is not reported"
done
# found by the client, from the sizes of the files
for damage in cut_short rm become_folder; do
  resume_damaged $damage
  grep -q "step-40 is not a complete checkpoint: .* step-30 is used instead" "$tmp/notes" || fail "$damage: not reported"
done

rm -rf "$tmp/ckpt" && cp -a "$tmp/first" "$tmp/ckpt"
flip "$(part "$tmp/ckpt/step-40")"
job=$(dtctl resume "$tmp/ckpt/step-40" --steps 50 --detach -o json | jq -er .job) || fail "the step is not taken"
wait_for 60 "the end of job $job" ended "$job"
is_state "$job" failed || fail "a step that was named is replaced by another one"
[ -d "$tmp/ckpt/step-40" ] || fail "a step that was named is put aside"

# The same while a job runs: its newest step is damaged, and a worker is lost.
job=$(submit --set train.steps=100000 --set checkpoint.dir=run --set name=run --set checkpoint.every=20)
wait_for 60 "step 50" reached "$job" 50
kill -STOP "$(worker_pid "$job" 1)" # and the other one waits for it
sleep 0.3
newest=$(ls "$tmp/run" | sed -n 's/^step-\([0-9]*\)$/\1/p' | sort -n | tail -n 1)
flip "$(part "$tmp/run/step-$newest")"
kill -9 "$(worker_pid "$job" 1)"
replaced() { dtctl why "$job" | grep -q "the damaged checkpoint of step $newest is put aside"; }
wait_for 60 "an older checkpoint" replaced
[ "$(status "$job" | jq .restarts)" = 1 ] || fail "the damaged checkpoint counts as a restart"
dtctl cancel "$job" >/dev/null

# A disk that cannot read the file: the second failure counts, since the first may pass. It costs a restart.
[ -n "${EIO_LIBRARY:-}" ] || exit 0
dtctl down >/dev/null
export EIO_FILE=$tmp/broken
rm -rf "$tmp/ckpt" && cp -a "$tmp/first" "$tmp/ckpt"
LD_PRELOAD=$EIO_LIBRARY dtctl up >/dev/null
echo ckpt/step-40/__1_0.distcp >"$EIO_FILE"
job=$(dtctl resume "$tmp/ckpt" --steps 50 --detach -o json | jq -er .job)
wait_done "$job" 120
hashes "$tmp/ckpt/step-50" | diff - "$tmp/expected" >/dev/null || fail "EIO: other parameters than without damage"
[ "$(status "$job" | jq .restarts)" = 1 ] || fail "EIO: $(status "$job" | jq .restarts) restarts"
dtctl why "$job" | grep -q "the damaged checkpoint of step 40 is put aside" || fail "EIO: not reported"
