#!/usr/bin/env bash
# Spend the minutes of a GPU: measure.sh --seconds N --out DIR [--data DIR] [OPTIONS] [STAGE...]; measure.py says how.
root=$(realpath "$(dirname "$0")/../..")
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" VITCLI_OFFLINE=1
exec "$(command -v python || command -v python3)" "$root/experiments/gpu/measure.py" "$@"
