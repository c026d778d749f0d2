#!/usr/bin/env bash
# Quantize real embedding weights, look at the result, compare it with the original and check the file.
# Run from the repository: bash examples/demo.sh
set -euo pipefail
bin=${BLOCKSCALE_BIN:-.venv/bin}
out=demo-output
mkdir -p "$out"
"$bin/python" - "$out/weights.safetensors" <<'PY'
import shutil, sys
from importlib.util import find_spec
from pathlib import Path

(weights,) = Path(find_spec("wordllama").origin).parent.glob("weights/*.safetensors")
shutil.copyfile(weights, sys.argv[1])
PY
run() {
  echo
  echo "\$ blockscale $*"
  "$bin/blockscale" "$@"
}
run quantize "$out/weights.safetensors" -o "$out/mxfp4.hrry" --scheme mxfp4 --rule mse --force
run inspect "$out/mxfp4.hrry"
run compare "$out/weights.safetensors" "$out/mxfp4.hrry"
run verify "$out/mxfp4.hrry"
echo
echo "The quantized weights lie in $out/mxfp4.hrry"
