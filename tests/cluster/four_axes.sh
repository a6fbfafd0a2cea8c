# deploy/examples/4d.yaml, 4d-ring.yaml and 5d.yaml: 16 workers on four axes train, save, and resume by the command in the files,
# with 2 tensor-parallel ranks x 3 stages. The first run uses proof numerics and a smaller batch; there every loss equals
# that of one worker within the bounds of tests/parity. The second run uses the files unchanged.
. "$(dirname "$0")/lib.sh"
up
examples=$DTD_SOURCE/deploy/examples
one=(--set parallel.workers=1 --set parallel.fsdp=1 --set parallel.zero=0 --set parallel.tp=1 --set parallel.cp=1
  --set parallel.pp=1 --set parallel.schedule=1f1b --set parallel.chunks=1 --set parallel.recompute=none --set parallel.ep=1)
# The options after "dtctl resume JOB" in the file's comment.
read_resume() { sed -n 's/^# *dtctl resume JOB //p' "$1"; }
begin() { # FILE FOLDER SETS...
  dtctl submit "$1" --set checkpoint.dir="$tmp/$2" "${@:3}" --detach -o json | jq -er .job
}
proof=(--set train.numerics=proof --set train.schedule=constant --set train.global_batch=8 --set train.micro_batch=1 --set train.seq=32)

for name in 4d 4d-ring 5d; do
  file=$examples/$name.yaml
  read -ra more <<<"$(read_resume "$file")"
  [ "${more[0]-}" = --more ] || fail "$name.yaml has no command to resume"
  other=("${more[@]:2}")

  whole=$(begin "$file" "one-$name" "${proof[@]}" "${one[@]}" --set train.steps=12 --set checkpoint.every=0)
  wait_done "$whole" 900
  job=$(begin "$file" "proof-$name" "${proof[@]}" --set train.steps=8 --set checkpoint.every=4)
  wait_done "$job" 900
  losses "$job" >"$tmp/losses"
  job=$(dtctl resume "$job" "${other[@]}" --steps 12 --detach -o json | jq -er .job)
  wait_done "$job" 900
  status "$job" | jq -e '[.worker[]] | length == 6' >/dev/null || fail "$name: the job does not have six workers"
  losses "$job" >>"$tmp/losses"
  join <(losses "$whole" | sort -k1,1) <(sort -k1,1 "$tmp/losses") | sort -n |
    awk '{ d = $2 > $3 ? $2 - $3 : $3 - $2; if (d > most * $2) most = d / $2; n++ }
         END { print n " losses, the largest difference " most; exit !(n == 12 && most <= 1e-10) }' || fail "$name: the losses differ from those of one worker"

  job=$(begin "$file" "plain-$name")
  wait_done "$job" 900
  losses "$job" | awk 'NR == 1 { first = $2 } END { exit !($2 < 0.8 * first) }' || fail "$name: the loss does not fall"
  last=$(losses "$job" | tail -n 1 | cut -d' ' -f2)
  job=$(dtctl resume "$job" "${more[@]}" --detach -o json | jq -er .job)
  wait_done "$job" 900
  [ "$(losses "$job" | head -n 1 | cut -d' ' -f1)" = 41 ] || fail "$name: the resumed run did not begin at step 41"
  losses "$job" | awk -v last="$last" 'END { exit !($2 < 1.05 * last) }' || fail "$name: the resumed run has a higher loss"
done
