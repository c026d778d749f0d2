#!/usr/bin/env bash
# Quantize real embedding weights, look at the result, compare it with the original and check the file.
# Run from the repository: bash examples/demo.sh
set -euo pipefail
bin=${BLOCKSCALE_BIN:-.venv/bin}
out=demo-output
mkdir -p "$out"
weights=$("$bin/python" - <<'PY'
from importlib.util import find_spec
from pathlib import Path

print(*Path(find_spec("wordllama").origin).parent.glob("weights/*.safetensors"))
PY
)
run() {
  echo
  echo "\$ blockscale $*"
  "$bin/blockscale" "$@"
}
run quantize "$weights" -o "$out/mxfp4.hrry" --scheme mxfp4 --rule mse --force
run inspect "$out/mxfp4.hrry"
run compare "$weights" "$out/mxfp4.hrry"
run verify "$out/mxfp4.hrry"
echo
echo "The quantized weights lie in $out/mxfp4.hrry"
