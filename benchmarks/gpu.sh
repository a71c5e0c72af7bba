#!/usr/bin/env bash
# Everything that only a GPU can show, in one go: tests, then short trainings whose speed is kept.
# Usage: benchmarks/gpu.sh OUT [DATA]   results go to OUT; DATA is a folder with CIFAR-10.
# Without a GPU (or without DATA) it runs at toy size, to show that it works.
set -euo pipefail
out=$(realpath "${1:?usage: benchmarks/gpu.sh OUT [DATA]}")
data=${2:+$(realpath "$2")}
cd "$(dirname "$0")/.."
export PYTHONPATH=$PWD VITCLI_OFFLINE=1
python -m vitcli doctor --json > "$out/doctor.json"

if python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  python -m pytest -q -m gpu tests/runner/test_gpu.py 2>&1 | tee "$out/pytest.txt"
  size=() epochs=10 compile=(true false)
else
  size=(--limit-batches 2) epochs=1 compile=(false)
fi

train() {  # NAME OPTIONS...: a training of a few epochs, its result kept as NAME.json
  local name=$1; shift
  python -m vitcli train "$@" --epochs "$epochs" "${size[@]}" -o "$out/runs/$name" --rerun --json > "$out/$name.json"
}
train quickstart quickstart
python benchmarks/many_trials.py 4 | tee "$out/many_trials.txt"
if [ ${#size[@]} -eq 0 ]; then  # trials side by side on one GPU, interleaved with one at a time
  for jobs in 1 3 1 3; do
    (time python -m vitcli ablate ablation-quickstart -j "$jobs" -o "$out/runs/study" --rerun --format json) \
      > "$out/study-j$jobs.json" 2>> "$out/study-j$jobs.txt"
  done
fi
if [ -n "$data" ]; then
  for precision in fp32 bf16; do
    for compiled in "${compile[@]}"; do
      train "small-$precision-compile-$compiled" cifar10-small --data-dir "$data" \
        --precision "$precision" -s train.compile=$compiled -s train.batch_size=500
    done
  done
  train small-aug cifar10-small-aug --data-dir "$data" --precision bf16 -s train.batch_size=500
fi
rm -rf "$out/runs"
