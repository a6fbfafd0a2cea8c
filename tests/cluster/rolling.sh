# rolling.sh OLD: four nodes, three of them voters, with dtds of version OLD are upgraded to the next one, as docs/operate/upgrade.md describes,
# under a running job of two workers. The job loses no step and ends with the parameters of an undisturbed run, bit for bit.
# What needs the new version is refused until the last node is upgraded, and names it. Afterwards it works, and a dtd of
# version OLD can neither join nor come back. DTD_BIN has programs that behave as any version (tests/versions). With
# OLD_PROGRAMS, the folder of the programs of an earlier release, whose newest version is OLD, the old dtds are those.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
old=$1 new=$(($1 + 1))
export DTD_TEST_VERSION=$old DTD_TEST_NEXT=$new
write_job
declare -A upgraded=()
on() { # on NODE COMMAND...: with the programs of the node
  local node=$1 programs=${OLD_PROGRAMS:-$DTD_BIN}
  shift
  [ -z "${upgraded[$node]:-}" ] || programs=$DTD_BIN
  DTD_DIR=$tmp/$node "$programs/dtctl" "$@"
}
newer() { # the same with the new ones
  local node=$1
  shift
  DTD_DIR=$tmp/$node DTD_TEST_VERSION=$new "$DTD_BIN/dtctl" "$@"
}
all_up() { cluster_has "$1" 'all(.node[]; .state == "up") and ([.node[] | select(.role == "leader" or .role == "voter")] | length == 3)'; }
leader() { cluster "$1" | jq -er .leader; }
version_is() { cluster_has "$1" "(.cluster_version // 1) == $2"; }
has_workers() { on "$2" status "$1" -o json | jq -e ".state == \"running\" and any(.worker[]; .node == \"$3\")"; }
has_left() { on "$2" status "$1" -o json | jq -e ".state == \"running\" and all(.worker[]; .node != \"$3\")"; }
leads_not() { cluster_has "$1" ".leader != null and .leader != \"$2\""; }
refused() { # refused TEXT COMMAND...: the command fails with the text
  local text=$1
  shift
  "$@" >"$tmp/out" 2>"$tmp/err" && fail "accepted before the cluster has version $new: $*"
  grep -q "$text" "$tmp/err" || fail "the refusal does not contain \"$text\": $(cat "$tmp/err")"
}
# A command, because dt-worker is not one of the programs of several versions.
printf 'name: next\ncommand: ["true"]\nnext: 1\n' >"$tmp/next.yaml"

steps=(--set train.steps=1200 --set model.dim=128 --set checkpoint.every=200)
up
job=$(submit "${steps[@]}" --set checkpoint.dir="$tmp/quiet")
wait_done "$job" 240
hashes "$tmp/quiet/step-1200" >"$tmp/quiet-hashes"
dtctl down >/dev/null

begin_nodes a b c d
mkdir "$tmp/views"
for n in $nodes; do cp "$tmp/$n/cluster/view" "$tmp/views/$n"; done
version_is a $old >/dev/null || fail "the cluster has another version: $(cluster a)"
cluster_has a 'has("next_version") | not' >/dev/null || fail "a newer version is announced although no node has it"
first=$(leader a)
job=$(on "$first" submit "$tmp/job.yaml" "${steps[@]}" --set checkpoint.dir="$tmp/rolled" --detach -o json | jq -er .job)

# upgrade NODE: drains it, exchanges its dtd, and undrains it. At the other nodes nothing else happens.
upgrade() {
  local n=$1 rest
  for rest in $nodes; do [ $rest = "$n" ] || break; done
  on $rest node drain "$n" --reason upgrade >/dev/null
  wait_for 60 "job $job to leave $n" has_left "$job" $rest "$n"
  [ "$n" != "$first" ] || before_the_last $rest
  on "$n" down >/dev/null
  newer "$n" up >/dev/null
  upgraded[$n]=yes
  wait_for 30 "dtd of $n" on "$n" node
  on $rest node undrain "$n" >/dev/null
  wait_for 60 "all nodes after the upgrade of $n" all_up $rest
  echo "$n is upgraded; job $job is at step $(on $rest status "$job" -o json | jq .step)"
}

# The leader is new by now, and one node old.
before_the_last() {
  local said="$first has dtd [^ ]*, whose newest version is $old"
  wait_for 20 "another leader than $first" leads_not "$1" "$first"
  version_is "$1" $old >/dev/null || fail "the version has risen before $first was upgraded"
  # The other nodes may not have found the new leader yet, and are named as well until they have.
  wait_for 20 "status to name $first alone" cluster_has "$1" ".next_version == $new and .held_back == [\"$first\"]"
  on "$1" cluster status | grep -q "version $old  $new waits until dtd is upgraded on $first" || fail "status: $(on "$1" cluster status)"
  refused "next needs version $new of the cluster, which has version $old: $said" newer "$1" submit "$tmp/next.yaml" --detach
  refused "needs version $new of the cluster, which has version $old: $said" newer "$1" node drain "$1" --reason next
}

wait_for 60 "the first steps of job $job" has_workers "$job" a "$(on a status "$job" -o json | jq -r '.worker[0].node')"
hint=".*; dtd on $first, which leads, is older than that of other nodes: upgrade it"
[ -z "${OLD_PROGRAMS:-}" ] || hint=""
others=$(for n in $nodes; do [ $n = "$first" ] || echo $n; done)
for n in $others; do
  upgrade "$n"
  # The leader is old and lacks the key.
  [ "$(leader "$n")" != "$first" ] || refused "unknown key$hint" newer "$n" submit "$tmp/next.yaml" --detach
done
upgrade "$first"
wait_for 10 "version $new" version_is "$first" $new
job_done() { on "$1" status "$2" -o json | jq -e '.state == "done"'; }
on a status "$job" -o json | jq -e '.state == "running"' >/dev/null || echo "job $job ended before the last upgrade: $(on a status "$job" -o json | jq -r .state)"

later=$(newer b submit "$tmp/next.yaml" --detach -o json | jq -er .job)
wait_for 120 "the end of job $job" job_done a "$job"
wait_for 60 "the end of job $later, which uses the new key" job_done a "$later"
on a status "$job" -o json | jq -e '.restarts == 0' >/dev/null || fail "the upgrade counts as a restart: $(on a status "$job" -o json | jq -c '[.incident[] | {seen, decided}]')"
on a status "$job" -o json | jq -e '[.incident[].lost_steps // 0] | add // 0 == 0' >/dev/null || fail "steps are lost: $(on a status "$job" -o json | jq -c .incident)"
[ "$(on a metrics "$job" -o jsonl | jq .step | sort -n | uniq | wc -l)" = 1200 ] || fail "metrics of some steps are missing"
[ "$(on a metrics "$job" -o jsonl | jq .step | wc -l)" = 1200 ] || fail "some steps were made twice"
hashes "$tmp/rolled/step-1200" >"$tmp/rolled-hashes"
cmp "$tmp/quiet-hashes" "$tmp/rolled-hashes" || fail "the final tensors differ from those of the undisturbed run"
newer a node drain b --reason next >/dev/null || fail "the new kind of record is refused after the upgrade"
newer a node undrain b >/dev/null

token=$(on a cluster token -o json | jq -er .token)
port_e=$(port)
nodes="a b c d e"
on e up >/dev/null
refused "dtd on e is too old: the cluster has version $new, and the newest version of that dtd is $old" on e cluster join $(where e) <<<"$token"
on e down >/dev/null
nodes="a b c d"

# A node that has not noticed the new version is refused when it connects. Voters notice it in their log.
spare=$(cluster a | jq -er 'first(.node[] | select(.role == null)).name')
rest=$(cluster a | jq -er .leader)
put_back() { on "$spare" down >/dev/null; unset "upgraded[$spare]"; }
has_new_view() { ! cmp -s "$tmp/views/$spare" "$tmp/$spare/cluster/view"; }
put_forth() {
  on "$spare" down >/dev/null 2>&1 || true
  newer "$spare" up >/dev/null
  upgraded[$spare]=yes
  wait_for 60 "$spare after its return" all_up "$rest"
  wait_for 10 "the new view in a file of $spare" has_new_view
}
put_back
cp "$tmp/views/$spare" "$tmp/$spare/cluster/view"
on "$spare" up >/dev/null
if [ -n "${OLD_PROGRAMS:-}" ]; then
  # Nodes of version 2 have an identity, which the programs of version 1 cannot prove.
  wait_for 30 "the refusal of $spare" grep "tunnel refused .*(name $spare, identity none)\|dtd on $spare is too old" "$tmp/$rest/control.log"
  cluster_has "$rest" ".node[] | select(.name == \"$spare\") | .state != \"up\"" >/dev/null || fail "$spare is up with its old dtd"
else
  wait_for 30 "the refusal on $spare" grep "this node is refused by .*dtd on $spare is too old: the cluster has version $new" "$tmp/$spare/control.log"
  cluster_has "$spare" ".note // \"\" | test(\"refuses this node: dtd on $spare is too old\")" >/dev/null || fail "the note on $spare: $(cluster "$spare")"
  cluster_has "$rest" ".node[] | select(.name == \"$spare\") | .state != \"up\" and .cluster_version == $old" >/dev/null || fail "the leader's status of $spare: $(cluster "$rest")"
fi
put_forth

# Others do not start with the old dtd, and the cluster goes on.
if [ -z "${OLD_PROGRAMS:-}" ]; then
  put_back
  on "$spare" up >/dev/null 2>"$tmp/err" && fail "a dtd of version $old starts in a cluster of version $new"
  grep -q "newer version than this dtd, whose newest is $old" "$tmp/$spare/control.log" || fail "control.log does not explain: $(tail -n 5 "$tmp/$spare/control.log")"
  put_forth
fi
end_nodes
