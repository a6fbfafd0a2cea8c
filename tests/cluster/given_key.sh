# given_key.sh: three dtds that start with the same key of a cluster (as under Slurm) form a cluster by themselves, in any
# order of their starts. A dtd with another key cannot join.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
key() { echo "k1 $(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')" >"$1"; chmod 600 "$1"; }
guard_nodes s1 s2 s3 s4
key "$tmp/key"
key "$tmp/other-key"
declare -A at
for n in s1 s2 s3 s4; do at[$n]=127.0.0.1:$(port); done
start() { # start NODE KEY
  cat >"$tmp/$1.yaml" <<X
name: $1
state_dir: $tmp/$1
slots: 2
cluster: {listen: "${at[$1]}", advertise: "${at[$1]}", key_file: $2, first: $([ "$1" = s1 ] && echo true || echo false),
  peers: ["${at[s1]}", "${at[s2]}", "${at[s3]}"]}
X
  "$DTD_BIN/dtd" --config "$tmp/$1.yaml" >"$tmp/$1.log" 2>&1 &
}

# The first node starts last, so that the others already try to connect when it starts.
start s3 "$tmp/key"
start s2 "$tmp/key"
start s4 "$tmp/other-key"
sleep 0.5
start s1 "$tmp/key"
for n in s1 s2 s3; do
  wait_for 30 "$n to see three" cluster_has $n '[.node[] | select(.state == "up") | .name] == ["s1", "s2", "s3"]'
done
cluster_has s1 'any(.node[]; .name == "s1" and .id == 1) and ([.node[].id] | unique | length == 3)' >/dev/null ||
  { cluster_has s1 .; fail "the first node does not have the first number, or two nodes have the same one"; }
wait_for 20 "three voters" cluster_has s2 '[.node[] | select(.role == "leader" or .role == "voter")] | length == 3'
cluster_has s4 '.node == []' >/dev/null || fail "a node with another key has joined"
end_nodes
