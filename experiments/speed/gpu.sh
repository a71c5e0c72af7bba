#!/usr/bin/env bash
# Run all measurements that need a GPU: [OUT=FOLDER] [DATA=FOLDER] gpu.sh [OPTIONS] [STAGE...]; gpu.py says how.
root=$(realpath "$(dirname "$0")/../..")
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" VITCLI_OFFLINE=1
exec "$(command -v python || command -v python3)" "$root/experiments/speed/gpu.py" "$@"
