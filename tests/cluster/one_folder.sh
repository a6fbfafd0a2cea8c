# One checkpoint folder has one owner: two jobs of one dtd under two names, and jobs of two dtds that share nothing but the
# folder (a requeue, a second sbatch, a resume with another DTD_DIR). The second one is refused, and its message names the first;
# --take-over turns it around, and the owner that lost ends at once; an owner that was killed is succeeded after a while.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
write_job
guard_nodes a b
mkdir "$tmp/real"
ln -s real "$tmp/link"
endless="train.steps=1000000" # ended by the test

running_job() { on "$1" status "$2" -o json | jq -e '.state == "running"'; }
failed_job() { on "$1" status "$2" -o json | jq -e '.state == "failed"'; }
canceled_job() { on "$1" status "$2" -o json | jq -e '.state == "canceled"'; }
saved() { on "$1" status "$2" -o json | jq -e ".checkpoint_step >= $3"; }
start() { local n=$1; shift; on "$n" submit "$tmp/job.yaml" "$@" --detach -o json | jq -er .job; }
names() { grep -q "$1" "$tmp/err" || fail "$2: $(cat "$tmp/err")"; }
host=$(hostname)
for n in a b; do on $n up >/dev/null; done

# Under two names, in one dtd.
one=$(start a --set $endless --set checkpoint.dir="$tmp/real")
wait_for 30 "a save of job $one" saved a "$one" 10
set +e
start a --set checkpoint.dir="$tmp/link" >"$tmp/out" 2>"$tmp/err" && fail "a second job in the folder, by a link"
names "job $one is running and writes its checkpoints to $tmp/link, under another name" "a link"

# From another dtd. Nothing is submitted.
on b submit "$tmp/job.yaml" --set checkpoint.dir="$tmp/link" --detach >"$tmp/out" 2>"$tmp/err"
[ $? -eq 2 ] || fail "a submit to another dtd: $(cat "$tmp/out" "$tmp/err")"
names "holds checkpoints already" "a submit to another dtd"
on b resume "$tmp/real" --steps 1000000 --detach >"$tmp/out" 2>"$tmp/err"
[ $? -eq 2 ] || fail "a resume from another dtd: $(cat "$tmp/out" "$tmp/err")"
names "in use by job $one on host $host (pid [0-9]*, DTD_DIR $tmp/a), which has held it for [0-9]* s" "a resume"
names "take the folder over: dtctl submit or resume with --take-over" "a resume"
set -e
[ "$(on b status -o json | jq length)" = 0 ] || fail "the other dtd has a job"
running_job a "$one" >/dev/null || fail "the owner was disturbed"

# A job that was free to start when it was submitted, and meets an owner when it starts.
mkdir "$tmp/later"
filler=$(on b run --workers-per-node "$(on b node -o json | jq .slots)" --detach -o json -- sleep 1000 | jq -er .job)
late=$(start b --set $endless --set checkpoint.dir="$tmp/later")
early=$(start a --set $endless --set checkpoint.dir="$tmp/later")
wait_for 30 "a save of job $early" saved a "$early" 10
on b cancel "$filler" >/dev/null
wait_for 30 "the refusal of job $late" failed_job b "$late"
on b why "$late" | grep -q "in use by job $early on host $host" || fail "why: $(on b why "$late")"
on b status "$late" | grep -q "in use by job $early on host $host" || fail "status: $(on b status "$late")"
grep -q "in use by job $early" "$tmp/b/jobs/$late/io.log" || fail "the log of dtd-io"
on a cancel "$early" >/dev/null

# On request. The loser ends, and its steps and the winner's are not mixed.
two=$(on b resume "$tmp/real" --steps 1000000 --set checkpoint.keep_best=7 --set checkpoint.keep_last=100 --take-over --detach -o json \
  2>"$tmp/err" | jq -er .job)
names "takes $tmp/real over from job $one on host $host" "--take-over"
wait_for 20 "the end of the job that lost" failed_job a "$one"
on a why "$one" | grep -q "was taken over by job $two on host $host" || fail "why of the loser: $(on a why "$one")"
grep -q "was taken over by job $two" "$tmp/a/jobs/$one/io.log" || fail "the log of the loser"
from=$(on b status "$two" -o json | jq -r .step)
wait_for 60 "saves of job $two" saved b "$two" $((from + 50))
whole=0
for s in "$tmp"/real/step-*; do
  case $s in *.e*) continue ;; esac
  dtctl ckpt verify "$s" >/dev/null || [ ! -e "$s" ] || fail "$s is not whole" # retention removes some meanwhile
  whole=$((whole + 1))
done
[ $whole -ge 3 ] || fail "$whole steps"
dtctl ckpt ls "$tmp/real" >/dev/null
newest=$(printf '%s\n' "$tmp"/real/step-*[0-9] | grep -v '\.e' | sort -V | tail -n 1)
grep -q 'keep_best: 7' "$newest/dtd.job.yaml" || fail "$newest is not the winner's"

# An owner that was killed, with all of its dtd: the next one waits until the lease is stale, and starts.
on b cancel --save "$two" >/dev/null
wait_for 30 "cancel --save" canceled_job b "$two"
three=$(on b resume "$tmp/real" --steps 1000000 --detach -o json | jq -er .job) # at once: the lease was released
wait_for 20 "job $three" running_job b "$three"
kill_node b
begin=$(date +%s)
four=$(on a resume "$tmp/real" --steps 1000000 --detach -o json 2>"$tmp/err" | jq -er .job)
names "has not been renewed for 5 s" "a resume after a crash"
wait_for 60 "job $four, after the lease of a killed owner" running_job a "$four"
took=$(($(date +%s) - begin))
echo "succeeded the killed owner after $took s"
[ $took -ge 25 ] || fail "it did not wait until the lease was stale: $took s"

# The killed dtd comes back, and its job with it: it does not get the folder.
on b up >/dev/null
wait_for 60 "the end of the job that came back" failed_job b "$three"
on b why "$three" | grep -q "in use by job $four on host $host" || fail "why of the job that came back: $(on b why "$three")"
running_job a "$four" >/dev/null || fail "the successor was disturbed"
on a cancel "$four" >/dev/null
