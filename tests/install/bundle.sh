#!/usr/bin/env bash
# bundle.sh TREE BUILD: unpacks the bundle in a new minimal Debian without dtd's dependencies, at a path with a space. As an ordinary
# user it trains a job, lists its checkpoints and resumes one. Skipped (77) without root, debootstrap or a network.
set -euo pipefail
tree=$1 build=$2
. "$tree/tests/install/lib.sh"

new_own_system
"$tree/deploy/bundle" --out "$work" "$build"
cp -a --reflink=auto "$cache/$codename" "$work/root"
mkdir -p "$work/root/opt/some folder"
tar -C "$work/root/opt/some folder" -xf "$work"/dtd-*.tar.xz
chroot "$work/root" useradd -m alice
write_job "$work/root/home/alice/job.yaml"
cat >"$work/root/home/alice/try" <<'X'
set -euo pipefail
cd
bin=$(echo /opt/*/dtd-*/bin)
# Libraries for InfiniBand and GPUs are not in the bundle; a system without such devices lacks them.
missing=$(find "$bin" "${bin%/bin}/lib" -type f -exec ldd {} + 2>/dev/null | grep 'not found' | grep -vE 'lib(ibverbs|rdmacm|mlx5|cuda|nccl|nvidia)' || true)
[ -z "$missing" ] || { echo "the bundle lacks: $missing"; exit 1; }
export PATH=$bin:$PATH
dtctl version
dtctl up
dtctl submit job.yaml
dtctl ckpt ls ckpt
dtctl resume ckpt --more 5 --workers 1
dtctl generate ckpt --prompt 'This License' --tokens 10
dtctl down
X
inside "$work/root" su - alice -c "bash try" >"$work/out" 2>&1 || { cat "$work/out"; fail "the bundle does not run in a bare $codename"; }
cat "$work/out"
grep -q 'is done: step 25' "$work/out" || fail "the resumed job did not reach step 25"
