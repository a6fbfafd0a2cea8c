# secrets.sh: a command gets the secrets of --env-file, and dtd keeps them nowhere: not in its state, its log, the job file,
# or a command line. Those of the environment are not passed on, and their names are printed.
. "$(dirname "$0")/lib.sh"
dtctl up >/dev/null
cd "$tmp"
printf 'HF_TOKEN=planted-in-file\n# a comment\nPLAIN=value of the file\n' >secrets
chmod 600 secrets
export WANDB_API_KEY=planted-in-environment PLAIN=inherited OTHER=inherited
dtctl run --env-file secrets --env GIVEN_TOKEN=given -- sh -c 'echo "$HF_TOKEN/$PLAIN/$OTHER/$GIVEN_TOKEN/${WANDB_API_KEY:-none}" >seen
  tr "\\0" " " </proc/$PPID/cmdline >parent; sleep 0.2' 2>err
[ "$(cat seen)" = "planted-in-file/value of the file/inherited/given/none" ] || fail "the command saw $(cat seen)"
grep -q "not passed on, because dtd would keep it in its log: WANDB_API_KEY; .*--env-file FILE" err || fail "the message: $(cat err)"
! grep -q HF_TOKEN err || fail "the message names a variable that is in the file"
found=$(grep -rla "planted-in" "$DTD_DIR" err parent 2>/dev/null || true)
[ -z "$found" ] || fail "a secret is in $found"
! dtctl status 1 -o json | grep -q planted-in || fail "a secret is in the status"

chmod 644 secrets
dtctl run --env-file secrets -- true 2>err && fail "a file that others may read"
[ $? = 2 ] || fail "exit code"
grep -q "secrets: other users have rights on it (mode 0644); chmod 600" err || fail "the refusal: $(cat err)"
dtctl run --env-file absent -- true 2>err && fail "a missing file"
grep -q -- "--env-file absent: No such file" err || fail "the refusal: $(cat err)"
printf 'planted-in-line\n' >broken
chmod 600 broken
dtctl run --env-file broken -- true 2>err && fail "a line without a variable"
grep -q "broken:1: expected KEY=VALUE" err || fail "the refusal: $(cat err)"
! grep -q planted err || fail "the refusal prints the secret"
