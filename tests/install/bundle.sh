#!/usr/bin/env bash
# bundle.sh TREE BUILD: unpacks the bundle in a new minimal Debian without dtd's dependencies, at a path with a space. As an ordinary
# user it trains a job, lists its checkpoints and resumes one. Skipped (77) without root, debootstrap or a network.
set -euo pipefail
tree=$1 build=$2
skip() { echo "skipped: $*"; exit 77; }
fail() { echo "FAILED: $*" >&2; exit 1; }
[ "$(id -u)" = 0 ] || skip "a chroot needs root"
for tool in debootstrap patchelf unshare; do command -v $tool >/dev/null || skip "$tool is not installed (deploy/packages install)"; done
unshare --mount --pid --fork true 2>/dev/null || skip "this machine does not allow new mount namespaces"
mirror=$(apt-get indextargets --format '$(CREATED_BY)|$(CODENAME)|$(COMPONENT)|$(ORIGIN)|$(REPO_URI)' |
  awk -F'|' '$1 == "Packages" && $3 == "main" && $4 == "Debian" && $2 !~ /-/ {print $2, $5; exit}')
[ -n "$mirror" ] || skip "apt's sources have no Debian archive"
read -r codename uri <<<"$mirror"

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
"$tree/deploy/bundle" --out "$work" "$build"
debootstrap --variant=minbase "$codename" "$work/root" "$uri" >"$work/debootstrap.log" 2>&1 || { tail -n 5 "$work/debootstrap.log"; skip "debootstrap failed"; }
mkdir -p "$work/root/opt/some folder"
tar -C "$work/root/opt/some folder" -xf "$work"/dtd-*.tar.xz
chroot "$work/root" useradd -m alice
cat >"$work/root/home/alice/job.yaml" <<'X'
name: first
model: {arch: llama, dim: 32, layers: 2, heads: 4}
data: {train: ["/usr/share/common-licenses/GPL-3"]}
train: {steps: 20, seq: 64, global_batch: 4, micro_batch: 2}
parallel: {workers: 2}
checkpoint: {dir: ckpt, every: 10}
X
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
unshare --mount --pid --fork bash -euc '
  root=$1
  mount --make-rprivate /
  mount --rbind /dev "$root/dev"
  mount -t proc proc "$root/proc"
  mount -t tmpfs tmpfs "$root/tmp"
  chroot "$root" su - alice -c "bash try"
' bash "$work/root" >"$work/out" 2>&1 || { cat "$work/out"; fail "the bundle does not run in a bare $codename"; }
cat "$work/out"
grep -q 'is done: step 25' "$work/out" || fail "the resumed job did not reach step 25"
