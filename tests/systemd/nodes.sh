# From one node to three, as docs/operate/first-cluster.md has it: three machines under a real systemd, one service, a job of an ordinary user
# over all of them, a node that loses power, one that is stopped in order, one that leaves.
if [ -z "${DTD_NODES_INSIDE:-}" ]; then
  unshare -n ip link add v1 type veth peer name v2 2>/dev/null || { echo "skipped: no networks can be made here"; exit 77; }
  DTD_NODES_INSIDE=1 exec unshare -n bash "$0" "$@" # the network between the machines is the test's own
fi
. "$(dirname "$0")/lib.sh"
ip link set lo up
ip link add br0 type bridge
ip link set br0 up
mkdir "$tmp/home" "$tmp/shared"
chmod 1777 "$tmp/shared"
nodes="n1 n2 n3"
number=0
check_machine
make_package
for n in $nodes; do
  number=$((number + 1))
  boot $n
  ip link add "v$number" type veth peer name eth0 netns "${inits[$n]}"
  ip link set "v$number" master br0 up
  inside ip addr add "10.79.0.$number/24" dev eth0
  inside ip link set eth0 up
  for k in 1 2 3; do echo "10.79.0.$k n$k"; done | inside sh -c 'cat >>/etc/hosts'
  put "$deb" /var/tmp/dtd.deb
  inside dpkg -i /var/tmp/dtd.deb >"$tmp/dpkg.log" 2>&1 || { cat "$tmp/dpkg.log"; fail "the package does not install"; }
  inside systemctl enable --now dtd 2>/dev/null
done

say "three nodes, one service"
if as alice dtctl cluster init >"$tmp/out" 2>&1; then fail "anybody makes a cluster"; fi
on n1 inside dtctl cluster init --advertise n1:7811 >"$tmp/init" || fail "init: $(cat "$tmp/init")"
token=$(grep -o 'dtd1[.][^ ]*' "$tmp/init" | head -n 1)
on n2 inside dtctl cluster join "$token" --advertise n2:7811 || fail "n2 does not join"
token=$(on n2 inside dtctl cluster token | grep -o 'dtd1[.][^ ]*' | head -n 1)
on n3 inside dtctl cluster join "$token" --advertise n3:7811 || fail "n3 does not join"
sees() { on "$1" inside dtctl cluster status -o json | jq -e "$2"; } # NODE FILTER
for n in $nodes; do
  wait_for 30 "three voters, as $n sees it" sees $n 'all(.node[]; .state == "up") and ([.node[] | select(.role == "leader" or .role == "voter")] | length == 3)'
done
on n2 as bob dtctl cluster status | grep -q n3 || fail "bob does not see the cluster"

say "a job over all of them"
on n1 inside install -d -o alice /srv/shared/alice
on n1 as alice sh -c 'cp /usr/share/doc/dtd/examples/first-job.yaml /srv/shared/alice/job.yaml'
job_on() { # NODE SETS...: into `job`
  job=$(on "$1" as alice sh -c "cd /srv/shared/alice && dtctl submit job.yaml --set model.dim=64 --set model.ffn=128 --set model.layers=2 \
    --set train.seq=32 --set train.numerics=canonical --set train.eval_every=0 --set run.nodes=0 ${*:2} --detach -o json" | jq -er .job)
}
is() { on "$1" as alice dtctl status "$job" -o json | jq -e "$2"; } # NODE FILTER
job_on n3 --set parallel.workers=48 --set train.global_batch=48 --set train.steps=50 --set train.warmup=1 --set checkpoint.dir=whole
wait_for 60 "the first job" is n2 '.state == "running"'
is n2 '[.worker[].node] | unique == ["n1", "n2", "n3"]' >/dev/null || fail "it is not on all nodes: $(is n2 .worker)"
wait_for 90 "the end of the first job" is n2 '.state == "done"'
[ "$(on n2 inside stat -c %U /srv/shared/alice/whole/step-50)" = alice ] || fail "the checkpoint is not alice's"
on n2 as alice dtctl logs "$job" --rank 40 | grep -q . || fail "no log of a rank elsewhere"
if on n2 as bob dtctl cancel "$job" >"$tmp/out" 2>&1; then fail "bob cancels alice's job on another node"; fi
grep -q "belongs to alice" "$tmp/out" || fail "the refusal does not say whose it is: $(cat "$tmp/out")"

say "power"
leads() { on n1 inside dtctl cluster status -o json | jq -er .leader; }
job_on n1 --set parallel.workers=4 --set train.steps=1000000 --set checkpoint.every=50 --set checkpoint.dir=long
wait_for 60 "the long job" is n1 '.state == "running" and .step > 60'
at=$(is n1 '[.worker[].node] | unique[0]' | tr -d '"')
witness=$([ "$at" = n1 ] && echo n2 || echo n1)
ip link set "v${at#n}" down
kill -9 "${inits[$at]}"
unset "inits[$at]"
wait_for 30 "its loss to be known" sees $witness "any(.node[]; .name == \"$at\" and .state == \"lost\")"
wait_for 60 "the job to go on elsewhere" is $witness ".state == \"running\" and .epoch == 2 and all(.worker[]; .node != \"$at\")"
on $witness as alice dtctl why "$job" | grep -q "node $at" || fail "why does not name the node: $(on $witness as alice dtctl why "$job")"
on $witness inside dtctl cluster remove "$at" || fail "the dead node is not removed"

say "a service that is stopped"
at=$(is $witness '[.worker[].node] | unique[0]' | tr -d '"')
other=$(for n in "${!inits[@]}"; do [ "$n" = "$at" ] || echo "$n"; done | head -n 1)
wait_for 30 "both to be up" sees "$other" 'all(.node[]; .state == "up")'
epoch=$(is "$other" .epoch)
on "$at" inside systemctl stop dtd
[ "$(on "$at" show Result)" = success ] || fail "stop ended as $(on "$at" show Result)"
wait_for 60 "the job to go on at $other" is "$other" ".state == \"running\" and .epoch > $epoch and all(.worker[]; .node == \"$other\")"
is "$other" '.restarts == 1' >/dev/null || fail "leaving in order counts as a restart"
on "$at" inside systemctl start dtd
wait_for 30 "it to be back" sees "$other" 'all(.node[]; .state == "up")'

say "drained, and gone"
on "$other" inside dtctl node drain "$other" --reason "new memory"
wait_for 60 "the job to leave" is "$at" ".state == \"running\" and all(.worker[]; .node == \"$at\")"
on "$other" inside dtctl cluster leave
wait_for 30 "one node" sees "$at" '.node | length == 1'
on "$at" as alice dtctl cancel "$job"
say "all of it holds"
