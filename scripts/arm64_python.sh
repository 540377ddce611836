#!/usr/bin/env bash
# Make a Python for arm64 that runs here under emulation, to try what is shipped for that architecture.
#
#     scripts/arm64_python.sh FOLDER
#     EVENLOAD_OTHER_PYTHON=FOLDER/python .venv/bin/pytest tests/native/test_forced_processors.py
#
# Takes Debian's qemu-user-static and arm64 packages by name (as root: apt learns the architecture for the while), and
# wheels of numpy and llvmlite. It is about twenty times slower than a real processor; nothing is timed on it.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
constraints=$(cd "$(dirname "$0")/.." && pwd)/constraints.txt
mkdir -p "$1" && cd "$1" && here=$PWD
mkdir -p root host site debs wheels

trap 'dpkg --remove-architecture arm64 || true' EXIT
dpkg --add-architecture arm64
apt-get update -qq
packages="libc6 libgcc-s1 libstdc++6 zlib1g libexpat1 libffi8 libssl3 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1
    libcrypt1 libpython3.11-minimal libpython3.11-stdlib python3.11-minimal python3.11"
(cd debs && apt-get download -qq qemu-user-static $(printf '%s:arm64 ' $packages))
for one in debs/*_arm64.deb; do dpkg -x "$one" root; done
dpkg -x debs/qemu-user-static_*.deb host

python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 --platform manylinux_2_17_aarch64 \
    --platform manylinux2014_aarch64 -c "$constraints" -d wheels numpy llvmlite click cloudpickle psutil
for one in wheels/*.whl; do python3 -m zipfile -e "$one" site; done

cat > python <<EOF2
#!/bin/sh
PYTHONPATH=\${PYTHONPATH:+\$PYTHONPATH:}$here/site
export PYTHONPATH
exec $here/host/usr/bin/qemu-aarch64-static -L $here/root -cpu max $here/root/usr/bin/python3.11 "\$@"
EOF2
chmod +x python
./python -c 'import platform, llvmlite.binding, numpy; print("Python", platform.python_version(), "for", platform.machine())'
