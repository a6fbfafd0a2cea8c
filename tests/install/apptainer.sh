#!/usr/bin/env bash
# apptainer.sh TREE BUILD: as an ordinary user, builds the image of deploy/apptainer.def on a minimal Debian, and uses it as
# docs/operate/containers.md shows: one command that starts a private dtd, and an instance. Skipped (77) without root, Apptainer
# (Debian 12 and 13 lack it), user namespaces or a network.
set -euo pipefail
tree=$1 build=$(realpath "$2")
. "$tree/tests/install/lib.sh"
command -v apptainer >/dev/null || skip "Apptainer is not installed (https://apptainer.org)"

new_own_system
home=$work/home
mkdir "$home"
"$tree/deploy/bundle" --out "$home/build/image" "$build"
cp -a --reflink=auto "$cache/$codename" "$home/base"
rm -rf --one-file-system "$home"/base/dev/* # only root can copy devices
cp -r "$tree/deploy" "$home/"
write_job "$home/job.yaml"
user=nobody
chmod 755 "$work"
chown -R --no-dereference "$user:" "$home"
# as_user COMMAND: with a home of its own, which is also the working folder.
as_user() { setpriv --reuid "$user" --regid "$(id -g $user)" --clear-groups env -C "$home" -i PATH="$PATH" HOME="$home" TMPDIR="$home" "$@"; }
as_user unshare --user --map-root-user true 2>/dev/null || skip "ordinary users cannot make user namespaces here"
image=(--home "$home" dtd.sif)

as_user apptainer build --build-arg BOOTSTRAP=localimage --build-arg BASE="$home/base" dtd.sif deploy/apptainer.def >"$work/build.log" 2>&1 ||
  { cat "$work/build.log"; fail "the image cannot be built"; }
as_user apptainer run "${image[@]}" --version | grep -q '^dtctl [0-9]' || fail "apptainer run does not run dtctl"
as_user apptainer exec "${image[@]}" sh -c 'dtctl up && dtctl submit job.yaml && dtctl down' >"$work/out" 2>&1 ||
  { cat "$work/out"; fail "a command in the image failed"; }
grep -q 'is done: step 20' "$work/out" || { cat "$work/out"; fail "the job did not reach step 20"; }

as_user apptainer instance start "${image[@]}" dtd-install >"$work/out" 2>&1 || { cat "$work/out"; fail "the instance does not start"; }
up=
for _ in $(seq 100); do
  if as_user apptainer exec instance://dtd-install dtctl status >/dev/null 2>&1; then up=1; break; fi
  sleep 0.1
done
resumed=
if [ -n "$up" ]; then
  as_user apptainer exec instance://dtd-install dtctl resume ckpt --more 5 >"$work/out" 2>&1 && resumed=1
fi
as_user apptainer instance stop dtd-install >/dev/null 2>&1 || fail "the instance does not stop"
[ -n "$up" ] || fail "dtctl does not reach the dtd of the instance"
[ -n "$resumed" ] && grep -q 'is done: step 25' "$work/out" || { cat "$work/out"; fail "the resumed job did not reach step 25"; }
echo "the image builds, and runs commands and an instance"
