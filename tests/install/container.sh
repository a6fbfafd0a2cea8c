#!/usr/bin/env bash
# container.sh TREE BUILD: builds the image of deploy/Containerfile on a minimal Debian with buildah, and uses it in the two ways that
# docs/operate/containers.md shows: one command that starts a private dtd, and dtd as the container's process 1 that other commands
# use. The latter must reap the orphans of its jobs and end at SIGTERM. Skipped (77) without root, buildah or a network.
set -euo pipefail
tree=$1 build=$2
. "$tree/tests/install/lib.sh"
command -v buildah >/dev/null || skip "buildah is not installed (deploy/packages install)"
images() { buildah --root "$work/images" --runroot "$work/run" --storage-driver vfs "$@"; }

new_own_system
"$tree/deploy/bundle" --out "$work/context" "$build"
base=$(images from scratch)
images add -q "$base" "$cache/$codename" / >/dev/null
images commit -q "$base" localhost/base >/dev/null
images bud --isolation chroot --build-arg BASE=localhost/base -f "$tree/deploy/Containerfile" -t dtd "$work/context" >"$work/bud.log" 2>&1 ||
  { cat "$work/bud.log"; fail "the image cannot be built"; }

container=$(images from dtd)
root=$(images mount "$container")
write_job "$root/work/job.yaml"
images run --isolation chroot "$container" -- sh -c 'dtctl up && dtctl submit job.yaml && dtctl down' >"$work/out" 2>&1 ||
  { cat "$work/out"; fail "a command in the image failed"; }
grep -q 'is done: step 20' "$work/out" || { cat "$work/out"; fail "the job did not reach step 20"; }

# As `podman run -d` and `podman exec` do; these need more rights than every machine gives.
cmd=$(images inspect --format '{{range .OCIv1.Config.Cmd}}{{.}} {{end}}' "$container")
inside "$root" $cmd >"$work/dtd.log" 2>&1 &
runner=$!
find_init() { # prints the process dtd among the descendants of runner
  local p=$runner
  until [ "$(cat "/proc/$p/comm" 2>/dev/null)" = dtd ]; do
    p=$(awk '{print $1}' "/proc/$p/task/$p/children" 2>/dev/null) || true
    [ -n "$p" ] || return 1
  done
  echo "$p"
}
init=
failed() { cat "$work/dtd.log"; [ -z "$init" ] || kill -KILL "$init" 2>/dev/null || true; fail "$*"; }
for _ in $(seq 100); do ! init=$(find_init) || break; sleep 0.1; done
[ -n "$init" ] && [ "$(awk '$1 == "NSpid:" {print $NF}' "/proc/$init/status")" = 1 ] || failed "dtd did not start as the container's process 1"
in_container() { nsenter --target "$init" --mount --pid --root --wd env -i HOME=/root PATH=/opt/dtd/bin:/usr/bin:/bin "$@"; }
in_container sh -c 'cd /work && dtctl up && dtctl resume ckpt --more 5 && dtctl run -- sh -c "setsid sleep 0.5 & echo the command ran"' \
  >"$work/out" 2>&1 || { cat "$work/out"; failed "commands in the running container failed"; }
grep -q 'is done: step 25' "$work/out" || { cat "$work/out"; failed "the resumed job did not reach step 25"; }
sleep 2
dead=$(in_container sh -c 'cat /proc/[0-9]*/stat' 2>/dev/null | awk '$3 == "Z"')
[ -z "$dead" ] || failed "process 1 did not reap: $dead"
kill -TERM "$init"
for _ in $(seq 300); do kill -0 "$init" 2>/dev/null || break; sleep 0.1; done
! kill -0 "$init" 2>/dev/null || failed "dtd did not end within 30 s of SIGTERM"
wait "$runner" || failed "dtd ended with status $? at SIGTERM"
images umount "$container" >/dev/null
echo "the image builds, and runs commands and dtd"
