# recover_return.sh: two of three voters are lost, the third one recovers the cluster, and the two come back. Numbers of jobs
# are not used twice, the two are refused and report why, no checkpoint of theirs reaches a folder of the recovered
# cluster, and they are taken in anew.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
write_job
begin_nodes a b c
id=$(cluster a | jq -er .id)
same_id() { for n in a b c; do cluster_has $n ".id == \"$id\" and .generation == 1"; done; }
wait_for 10 "one id on all nodes" same_id
[ "$(wc -c <<<"$id")" = 17 ] || fail "the id is $id"
for n in b c; do on a node drain $n --reason "so that the job is on a"; done
endless="--set train.steps=1000000 --set checkpoint.every=50 --set model.dim=128"
job=$(on a submit "$tmp/job.yaml" $endless --set checkpoint.dir="$tmp/ck" --detach -o json | jq -er .job)
saved() { [ -d "$tmp/ck/step-$1" ]; }
newest() { ls "$tmp/ck" | sed -n 's/^step-\([0-9]*\)$/\1/p' | sort -n | tail -n 1; }
wait_for 60 "step 50" saved 50
for n in b c; do on a node undrain $n; done

kill_node b
kill_node c
wait_for 20 "the loss of the leader" cluster_has a '.leader == null'
on a cluster recover 2>"$tmp/err" && fail "recover without --yes"
on a cluster recover --yes >"$tmp/out"
grep -q "number is 1000 higher" "$tmp/out" || fail "recover does not report the gap: $(cat "$tmp/out")"
cluster_has a ".id == \"$id\" and .generation == 2 and .recovered_by == \"a\" and .recovered_ms > 0" >/dev/null ||
  fail "status after recover: $(cluster a)"
cluster_has a '[.node[].name] == ["a"] and .key == 2 and .keys == 1' >/dev/null ||
  wait_for 10 "the old nodes and the old key to be gone" cluster_has a '[.node[].name] == ["a"] and .key == 2 and .keys == 1'
runs_on() { on a status "$job" -o json | jq -e ".state == \"running\" and .restarts == 0 and .epoch == 1"; }
wait_for 30 "the job, in the same epoch" runs_on
wait_for 60 "a checkpoint of the recovered cluster" saved $(($(newest) + 100))
next=$(on a submit "$tmp/job.yaml" --set checkpoint.dir="$tmp/next" --detach -o json | jq -er .job)
[ "$next" = $((job + 1001)) ] || fail "the next job after $job has the number $next"

# The two come back while a cannot be reached, and are a cluster of their own. They cannot save into the folder of the job.
kill -STOP $(tree "$(head -n 1 "$tmp/a/dtd.lock")")
last=$(newest)
for n in b c; do on $n up >/dev/null; done
wait_for 30 "a leader of the lost voters" cluster_has b '.leader == "b" or .leader == "c"'
cluster_has b '.generation == 1' >/dev/null || fail "the lost voters have another generation: $(cluster b)"
theirs=$(on b submit "$tmp/job.yaml" --set checkpoint.dir="$tmp/theirs" --detach -o json | jq -er .job)
[ "$theirs" -lt "$next" ] || fail "one number for two jobs: $theirs"
refused() { on b status "$job" -o json | jq -e '.state == "failed"'; }
wait_for 60 "their copy of the job to be refused" refused
on b why "$job" | grep -q "in use by job $job of the recovered cluster" || fail "why: $(on b why "$job")"
[ "$(newest)" = "$last" ] || fail "a checkpoint of step $(newest) was written after step $last by the lost voters"

# a can be reached again: they stop at once and report why.
kill -CONT $(tree "$(head -n 1 "$tmp/a/dtd.lock")")
stopped() { cluster_has "$1" '.leader == null and (.note | contains("was recovered on node a at 20") and contains("dtctl cluster leave, then dtctl cluster join"))'; }
for n in b c; do wait_for 30 "$n to report the recovery" stopped $n; done
for n in b c; do
  grep -q "was recovered without this node.* by=a .*generation=2" "$tmp/$n/control.log" || fail "the log of $n does not have the recovery"
  timeout 30 env DTD_DIR="$tmp/$n" "$DTD_BIN/dtctl" submit "$tmp/job.yaml" --set checkpoint.dir="$tmp/no" --detach >"$tmp/out" 2>&1 &&
    fail "$n takes a job: $(cat "$tmp/out")"
  on $n cluster recover --yes 2>"$tmp/err" && fail "$n recovers itself"
  grep -q "was recovered on a, without this node" "$tmp/err" || fail "recover on $n: $(cat "$tmp/err")"
done
cluster_has a '.leader == "a" and [.node[].name] == ["a"]' >/dev/null || fail "the recovered cluster has changed: $(cluster a)"
wait_for 30 "the job to run on" runs_on
wait_for 60 "a checkpoint after their return" saved $(($(newest) + 100))
kill_node b # and it remembers
on b up >/dev/null
wait_for 10 "b to report the recovery after a restart" stopped b

# Taken in anew.
for n in b c; do
  on $n cluster leave
  token=$(on a cluster token -o json | jq -er .token)
  on $n cluster join <<<"$token" $(where $n) >/dev/null
done
voters() { cluster_has a "[.node[] | select(.role == \"leader\" or .role == \"voter\")] | length == $1"; }
wait_for 30 "three voters" voters 3
cluster_has c ".id == \"$id\" and .generation == 2" >/dev/null || fail "a node that has joined has another lineage: $(cluster c)"
on b status "$job" -o json | jq -e '.state == "running"' >/dev/null || fail "the job has been lost"
on a cancel "$job" >/dev/null
end_nodes
