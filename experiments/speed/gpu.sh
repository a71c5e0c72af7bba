#!/usr/bin/env bash
# Run all measurements that need a GPU, in independent stages. A stage takes at most eight minutes, all take twenty.
# Usage: [OUT=FOLDER] [DATA=FOLDER] experiments/speed/gpu.sh [STAGE...]
#   STAGE: check throughput attention peers small-aug strong ablation resume   (default: all)
#   OUT:   folder for the JSON files of the stages (default: experiments/results/speed/gpu)
#   DATA:  a folder with CIFAR-10; without it the trainings are skipped
# If a stage cannot finish its training in time, the next call resumes the training from its checkpoint in OUT.
# Without a GPU all stages run at toy size on the CPU, as a test of this script.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath -m "${OUT:-experiments/results/speed/gpu}")
data=${DATA:+$(realpath "$DATA")}
mkdir -p "$out"
export PYTHONPATH=$PWD VITCLI_OFFLINE=1
if python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  device=cuda quick=() epochs=100 seconds=1 rounds=5 lengths=64,256,1024,4096,16384 budget=4m models=tiny,small
else
  device=cpu quick=(--limit-batches 2) epochs=1 seconds=0.05 rounds=1 lengths=64,128 budget=20s models=tiny
fi

keep() {  # NAME COMMAND...: save the stdout of a command as NAME.json if the command succeeds
  local name=$1; shift
  "$@" > "$out/$name.part" && mv "$out/$name.part" "$out/$name.json"
}

train() {  # NAME EXPERIMENT OPTIONS...: train for at most 470 s; exit code 143 means stopped with a checkpoint
  local name=$1 code=0; shift
  [ -n "$data" ] || { echo "$name: skipped, because DATA is not set"; return; }
  keep "$name" timeout -s TERM 470 python -m vitcli train "$@" --device "$device" --data-dir "$data" \
    "${quick[@]}" -o "$out/runs/$name" --resume auto --json || code=$?
  [ "$code" = 0 ] || [ "$code" = 143 ] || return "$code"
}

check() {
  keep doctor python -m vitcli doctor --json
  [ "$device" = cpu ] || python -m pytest -q -m gpu tests 2>&1 | tee "$out/pytest.txt"
}

throughput() {
  local each=(--device "$device" --seconds "$seconds" --rounds "$rounds" --json)
  keep throughput-tiny python -m vitcli bench train cifar10-tiny "${each[@]}"
  [ "$device" = cuda ] || return 0
  for batch in 500 1000 2000; do
    keep "throughput-small-$batch" python -m vitcli bench train cifar10-small-aug "${each[@]}" \
      --precision bf16 -s train.batch_size="$batch"
  done
  keep throughput-strong python -m vitcli bench train cifar10-strong "${each[@]}" -s train.batch_size=1000
  keep throughput-base-p2 python -m vitcli bench train cifar10-base-p2 "${each[@]}" --precision bf16
  python experiments/speed/many_trials.py 4 | tee "$out/many_trials.txt"
}

attention() {
  keep attention python -m vitcli bench attention --device "$device" --lengths "$lengths" \
    --seconds "$seconds" --rounds "$rounds" --json
}

peers() {
  python experiments/speed/peers.py ${data:+--data "$data"} --device "$device" --models "$models" \
    --rounds "$rounds" --seconds "$seconds" -o "$out/peers-$device.json"
}

small_aug() {
  train small-aug cifar10-small-aug --epochs "$epochs" --precision bf16 -s train.batch_size=500 \
    -s train.eval_every=10
}

strong() {
  train strong cifar10-strong --epochs "$epochs" -s data.augment.mix_off_epoch=$((epochs * 85 / 100))
}

ablation() {
  local code=0 study=(ablation-quickstart)
  if [ -n "$data" ]; then study=(ablation-cifar10-short --data-dir "$data"); fi
  if [ "$device" = cpu ]; then study+=(--dry-run); else study+=(--budget "$budget" --device cuda --format json); fi
  keep ablation timeout -s TERM 470 python -m vitcli ablate "${study[@]}" -o "$out/runs/ablation" || code=$?
  [ "$code" = 0 ] || [ "$code" = 3 ] || [ "$code" = 143 ] || return "$code"
}

resume() { python experiments/speed/resume_exact.py --device "$device" -o "$out/resume.json"; }

[ $# -gt 0 ] || set -- check throughput attention peers small-aug strong ablation resume
for stage; do
  echo "== $stage"
  "${stage//-/_}"
done
