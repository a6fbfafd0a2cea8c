# old_copy.sh: the state directory of one voter of three is replaced by an old copy, as by the image of a virtual machine.
# The other voters give it no stream, it reports that and does not vote, also while a majority would need it, and it is
# taken in anew. No acknowledged job is lost.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
write_job
begin_nodes a b c
next() { on "$1" submit "$tmp/job.yaml" --set checkpoint.dir="$tmp/ck-$2" --detach -o json | jq -er .job; }
other() { for n in a b c; do case " $* " in *" $n "*) ;; *) echo $n; return ;; esac; done; }
copy() { rm -rf "$tmp/image"; cp -a "$tmp/$1" "$tmp/image"; }
restore() { rm -rf "${tmp:?}/$1"; mv "$tmp/image" "$tmp/$1"; }
voters() { cluster_has $1 "[.node[] | select(.role == \"leader\" or .role == \"voter\")] | length == $2"; }
all_up() { cluster_has $1 '.leader != null and ([.node[] | select(.state == "up")] | length == 3)'; }
is_old() { cluster_has "$1" '.note | contains("is an old copy") and contains("dtctl cluster leave, then dtctl cluster join")'; }

# A follower, copied while it runs.
one=$(next a 1)
leader=$(cluster a | jq -er .leader)
v=$(other "$leader")
copy "$v"
two=$(next a 2)
sleep 1.5 # the leader has sent the others what v has acknowledged
kill_node "$v"
restore "$v"
on "$v" up >/dev/null
wait_for 20 "$v to report that its log is an old copy" is_old "$v"
grep -q "the log of a voter is an old copy.*node=$v" "$tmp"/*/control.log || fail "no voter has logged the old copy"
on "$v" status "$two" -o json >/dev/null || fail "job $two is lost"
kill_node "$v" # and it remembers
on "$v" up >/dev/null
wait_for 20 "$v to report it again" is_old "$v"
on "$v" cluster leave
token=$(on "$leader" cluster token -o json | jq -er .token)
on "$v" cluster join <<<"$token" $(where "$v") >/dev/null
wait_for 30 "three voters" voters "$leader" 3
wait_for 30 "all nodes up" all_up "$leader"

# The leader, while one of the other two is down as well: the third one and the old copy would be a majority.
three=$(next a 3)
leader=$(cluster a | jq -er .leader)
w=$(other "$leader")
l=$(other "$leader" "$w")
copy "$leader"
four=$(next "$w" 4)
sleep 1.5
kill_node "$l"
kill_node "$leader"
restore "$leader"
on "$leader" up >/dev/null
wait_for 20 "$leader to report that its log is an old copy" is_old "$leader"
sleep 3
cluster_has "$w" '.leader == null' >/dev/null || fail "a leader was elected by an old copy: $(cluster "$w")"
on "$l" up >/dev/null
wait_for 20 "a leader" cluster_has "$w" '.leader != null'
for j in "$one" "$two" "$three" "$four"; do
  on "$w" status "$j" -o json >/dev/null || fail "job $j, which was acknowledged, is lost"
done
five=$(next "$w" 5)
[ "$five" = $((four + 1)) ] || fail "the next job after $four has the number $five"
on "$leader" cluster leave
on "$leader" cluster join <<<"$(on "$w" cluster token -o json | jq -er .token)" $(where "$leader") >/dev/null
wait_for 30 "three voters again" voters "$w" 3
end_nodes
