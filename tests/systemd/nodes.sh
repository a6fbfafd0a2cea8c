# The steps of docs/operate/first-cluster.md: three machines with a real systemd become one service. An ordinary user runs a job on all of
# them; then one node loses power, one is stopped by systemctl, and one leaves the cluster.
if [ -z "${DTD_NODES_INSIDE:-}" ]; then
  unshare -n ip link add v1 type veth peer name v2 2>/dev/null || { echo "skipped: this machine does not allow new networks"; exit 77; }
  DTD_NODES_INSIDE=1 exec unshare -n bash "$0" "$@" # a network namespace for the links between the machines
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
  inside dpkg -i /var/tmp/dtd.deb >"$tmp/dpkg.log" 2>&1 || { cat "$tmp/dpkg.log"; fail "dpkg does not install the package"; }
  inside systemctl enable --now dtd 2>/dev/null
done

heading "three nodes, one service"
if as alice dtctl cluster init >"$tmp/out" 2>&1; then fail "an ordinary user may create a cluster"; fi
on n1 inside dtctl cluster init --advertise n1:7811 >"$tmp/init" || fail "init: $(cat "$tmp/init")"
token=$(grep -o 'dtd1[.][^ ]*' "$tmp/init" | head -n 1)
on n2 inside dtctl cluster join <<<"$token" --advertise n2:7811 || fail "n2 cannot join"
token=$(on n2 inside dtctl cluster token | grep -o 'dtd1[.][^ ]*' | head -n 1)
on n3 inside dtctl cluster join <<<"$token" --advertise n3:7811 || fail "n3 cannot join"
sees() { on "$1" inside dtctl cluster status -o json | jq -e "$2"; } # NODE FILTER
for n in $nodes; do
  wait_for 30 "three voters, as $n sees it" sees $n 'all(.node[]; .state == "up") and ([.node[] | select(.role == "leader" or .role == "voter")] | length == 3)'
done
on n2 as bob dtctl cluster status | grep -q n3 || fail "bob does not see the cluster"

heading "a job on all nodes"
on n1 inside install -d -o alice /srv/shared/alice
on n1 as alice sh -c 'cp /usr/share/doc/dtd/examples/first-job.yaml /srv/shared/alice/job.yaml'
job_on() { # NODE SETS...: submits there; `job` is its number
  job=$(on "$1" as alice sh -c "cd /srv/shared/alice && dtctl submit job.yaml --set model.dim=64 --set model.ffn=128 --set model.layers=2 \
    --set train.seq=32 --set train.numerics=canonical --set train.eval_every=0 --set run.nodes=0 ${*:2} --detach -o json" | jq -er .job)
}
is() { on "$1" as alice dtctl status "$job" -o json | jq -e "$2"; } # NODE FILTER
job_on n3 --set parallel.workers=48 --set train.global_batch=48 --set train.steps=50 --set train.warmup=1 --set checkpoint.dir=whole
wait_for 60 "the first job" is n2 '.state == "running"'
is n2 '[.worker[].node] | unique == ["n1", "n2", "n3"]' >/dev/null || fail "the job is not on all nodes: $(is n2 .worker)"
wait_for 90 "the end of the first job" is n2 '.state == "done"'
[ "$(on n2 inside stat -c %U /srv/shared/alice/whole/step-50)" = alice ] || fail "the checkpoint is not alice's"
on n2 as alice dtctl logs "$job" --rank 40 | grep -q . || fail "no log of a rank on another node"
if on n2 as bob dtctl cancel "$job" >"$tmp/out" 2>&1; then fail "bob may cancel alice's job on another node"; fi
grep -q "belongs to alice" "$tmp/out" || fail "the refusal does not name the owner: $(cat "$tmp/out")"

heading "a node loses power"
leads() { on n1 inside dtctl cluster status -o json | jq -er .leader; }
job_on n1 --set parallel.workers=4 --set train.steps=1000000 --set checkpoint.every=50 --set checkpoint.dir=long
wait_for 60 "the long job" is n1 '.state == "running" and .step > 60'
at=$(is n1 '[.worker[].node] | unique[0]' | tr -d '"')
witness=$([ "$at" = n1 ] && echo n2 || echo n1)
ip link set "v${at#n}" down
kill -9 "${inits[$at]}"
unset "inits[$at]"
wait_for 30 "$at to be reported as lost" sees $witness "any(.node[]; .name == \"$at\" and .state == \"lost\")"
wait_for 60 "the job to continue on other nodes" is $witness ".state == \"running\" and .epoch == 2 and all(.worker[]; .node != \"$at\")"
on $witness as alice dtctl why "$job" | grep -q "node $at" || fail "dtctl why does not name the node: $(on $witness as alice dtctl why "$job")"
on $witness inside dtctl cluster remove "$at" || fail "the lost node cannot be removed"

heading "a service that is stopped"
at=$(is $witness '[.worker[].node] | unique[0]' | tr -d '"')
other=$(for n in "${!inits[@]}"; do [ "$n" = "$at" ] || echo "$n"; done | head -n 1)
wait_for 30 "both to be up" sees "$other" 'all(.node[]; .state == "up")'
epoch=$(is "$other" .epoch)
on "$at" inside systemctl stop dtd
[ "$(on "$at" show Result)" = success ] || fail "stop ended as $(on "$at" show Result)"
wait_for 60 "the job to continue on $other" is "$other" ".state == \"running\" and .epoch > $epoch and all(.worker[]; .node == \"$other\")"
is "$other" '.restarts == 1' >/dev/null || fail "an orderly stop counts as a restart"
on "$at" inside systemctl start dtd
wait_for 30 "$at to be up again" sees "$other" 'all(.node[]; .state == "up")'

heading "a node is drained and leaves"
on "$other" inside dtctl node drain "$other" --reason "new memory"
wait_for 60 "the job to move to $at" is "$at" ".state == \"running\" and all(.worker[]; .node == \"$at\")"
on "$other" inside dtctl cluster leave
wait_for 30 "one node" sees "$at" '.node | length == 1'
on "$at" as alice dtctl cancel "$job"
heading "passed"
