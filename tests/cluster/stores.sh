# stores.sh: a c10d store is reachable by its name on all nodes of a cluster. Closing it closes it everywhere, and it is lost
# with its node. The test sends the bytes that docs/use/c10d-store.md describes.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/several.sh"
begin_nodes a b c
opened() { on "$1" store open --name "$2" -o json | jq -er .port; }
cat >"$tmp/c10d.py" <<'X2'
"""add PORT KEY N: prints the sum. hold PORT: prints "in"; when the connection ends, prints the number of bytes received."""
import socket, struct, sys
def text(b): return struct.pack('<Q', len(b)) + b
s = socket.create_connection(('127.0.0.1', int(sys.argv[2])), 10)
s.sendall(bytes.fromhex('00cef7853c'))
if sys.argv[1] == 'add':
    s.sendall(b'\x04' + text(sys.argv[3].encode()) + struct.pack('<q', int(sys.argv[4])))
    answer = s.recv(8, socket.MSG_WAITALL)
    sys.exit('closed') if len(answer) < 8 else print(struct.unpack('<q', answer)[0])
else:
    s.sendall(b'\x0d' + b'here')
    assert s.recv(4, socket.MSG_WAITALL) == b'here'
    print('in', flush=True)
    s.settimeout(60)
    try: print(len(s.recv(1)))
    except ConnectionResetError: print(0)
X2
c10d() { python3 "$tmp/c10d.py" "$@"; }
is() { [ "$1" = "$2" ] || fail "$3: $1, expected $2"; }

on a store open --name 'no/name' 2>"$tmp/err" && fail "open accepts an illegal name"
grep -q "letters, digits" "$tmp/err" || fail "$(cat "$tmp/err")"
port_on_b=$(opened b run)
is "$(opened b run)" "$port_on_b" "the port after a second open"
port_on_a=$(opened a run) port_on_c=$(opened c run)
is "$(c10d add "$port_on_b" n 1)" 1 "where it lives"
is "$(c10d add "$port_on_a" n 1)" 2 "by another node"
is "$(c10d add "$port_on_c" n 1)" 3 "by the third"
is "$(on c store ls -o json | jq -c 'map([.name, .node])')" '[["run","b"]]' "the list"
is "$(c10d add "$(opened a other)" n 1)" 1 "a store of another name"

c10d hold "$port_on_a" >"$tmp/held" &
held=$!
wait_for 20 "a connection" grep -q in "$tmp/held"
on c store close run
wait $held
is "$(tail -n 1 "$tmp/held")" 0 "a connection to a store that is closed"
on c store close run 2>"$tmp/err" && fail "a second close succeeds"
grep -q "store ls" "$tmp/err" || fail "$(cat "$tmp/err")"
is "$(c10d add "$(opened a run)" n 1)" 1 "a new store of an old name"

# The node that has the store is lost; opening the name again creates a new store on another node.
b_port=$(opened b run)
port_b2=$(opened b lost) port_c2=$(opened c lost)
is "$(c10d add "$port_b2" n 5)" 5 "where it lives"
c10d hold "$port_c2" >"$tmp/held" &
held=$!
wait_for 20 "a connection" grep -q in "$tmp/held"
kill -9 "$(head -n 1 "$tmp/b/dtd.lock")"
wait $held
is "$(tail -n 1 "$tmp/held")" 0 "a connection to a lost node's store"
gone() { on c store ls -o json | jq -e 'all(.[]; .name != "lost")'; }
wait_for 30 "the removal of the lost store" gone
is "$(c10d add "$(opened c lost)" n 1)" 1 "a store in place of the lost one"
is "$(c10d add "$(opened a run)" n 1)" 2 "a store that was on no lost node"
end_nodes
