#!/usr/bin/env bash
# From nothing to a predicted car: sets up, builds, cuts a surface into shards, trains on two ranks, predicts a body that
# training never saw, and compares its drag and lift with the solver's.
#
#   bash apps/quickstart.sh              all of it; results in build/quickstart
#   bash apps/quickstart.sh --no-setup   skip the set-up (apps/setup.sh) and the build
#   bash apps/quickstart.sh --epochs 1   train that long instead, to see every step work
#   bash apps/quickstart.sh -o DIR       results in DIR, which must be new or empty
#
# MESHARD_BUILD names another build folder, MESHARD_JOBS the number of compilers at once.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${MESHARD_BUILD:-$root/build/release}
jobs=${MESHARD_JOBS:-$(nproc)}
out=$root/build/quickstart
sample=$root/apps/sample
meshard=$build/bin/meshard
with_setup=yes
epochs=()
own_out=
refuse() { echo "quickstart.sh: $*" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case "$1" in
    --no-setup) with_setup=no ;;
    --epochs)
      [[ "${2:-}" =~ ^[1-9][0-9]*$ ]] || refuse "--epochs needs a number of epochs, from 1."
      epochs=("training.num_epochs=$2"); shift ;;
    -o)
      [ -n "${2:-}" ] || refuse "-o needs a folder."
      own_out=$(realpath -m "$2"); shift ;;
    -h|--help) sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) refuse "unknown option '$1'. Known: --no-setup, --epochs N, -o DIR, --help." ;;
  esac
  shift
done

# --- steps, each with its name and time ------------------------------------------------------------------------------
step_names=()
step_seconds=()
current=
begin() {
  current=$1
  started=$(date +%s.%N)
  printf '\n=== %s\n' "$current"
}
end() {
  step_names+=("$current")
  step_seconds+=("$(awk -v a="$started" -v b="$(date +%s.%N)" 'BEGIN { printf "%.1f", b - a }')")
  current=
}
show() { printf '$ %s\n' "${*//$root\//}"; "$@"; }
trap '[ -z "$current" ] || printf "\nquickstart: the step \"%s\" failed. Its messages stand above.\n" "$current" >&2' EXIT

if [ "$with_setup" = yes ]; then
  begin "Set up"
  show bash "$root/apps/setup.sh"
  end
  begin "Build"
  mkdir -p "$root/build"
  log=$root/build/quickstart-build.log
  echo "cmake -S . -B ${build#"$root"/} and build (some minutes the first time; messages in ${log#"$root"/})"
  { cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release && cmake --build "$build" -j "$jobs" --target meshard; } >"$log" 2>&1 ||
    { tail -n 30 "$log" >&2; exit 1; }
  end
fi
[ -x "$meshard" ] || { echo "quickstart: $meshard is missing. Run without --no-setup." >&2; exit 2; }
if [ -n "$own_out" ]; then
  out=$own_out
  [ -z "$(ls -A "$out" 2>/dev/null)" ] || refuse "$out holds files already. Name a new folder."
else
  rm -rf "$out"
fi
mkdir -p "$out"

# --- cut ---------------------------------------------------------------------------------------------------------------
begin "Cut a surface into 4 shards, check them, put them together again"
show "$meshard" partition "$sample/boundary_026.vtp" -n 4 --ghost-layers 1 -o "$out/shards"
show "$meshard" check "$out/shards"
show "$meshard" merge "$out/shards" -o "$out/merged.vtp" --verify "$sample/boundary_026.vtp"
show "$meshard" render "$out/shards" --color-by PartitionId -o "$out/shards.png"
end

# --- train and predict ---------------------------------------------------------------------------------------------------
begin "Train on 15 bodies, each spread over 2 ranks"
show "$meshard" train "$sample/ahmed.yaml" --nproc 2 data.root="$sample" output_dir="$out/runs" ${epochs[@]+"${epochs[@]}"}
end

begin "Predict a body that training never saw"
show "$meshard" predict "$out/runs/ahmed" "$sample/boundary_026.vtp" -o "$out/predicted_026.vtp" --nproc 2
end

begin "Drag and lift, and a picture"
area=$(python3 -c 'import json, sys; print(next(c["Aref_half"] for c in json.load(open(sys.argv[1]))["cases"] if c["id"] == "026"))' "$sample/cases.json")
reference=(--u-inf 40 --area "$area" --json)
"$meshard" forces "$sample/boundary_026.vtp" --pressure pMean --shear wallShearStressMean "${reference[@]}" >"$out/forces_solver.json"
"$meshard" forces "$out/predicted_026.vtp" --pressure pressure --shear wss "${reference[@]}" >"$out/forces_predicted.json"
forces_table=$(python3 - "$out/forces_solver.json" "$out/forces_predicted.json" <<'PYTHON'
import json, sys
solver, predicted = (json.load(open(path)) for path in sys.argv[1:])
print(f"  {'body 026':24}{'solver':>10}{'predicted':>12}{'difference':>12}")
for key, name in (("Cd", "drag coefficient Cd"), ("Cd_pressure", "  of pressure"), ("Cd_viscous", "  of wall shear"), ("Cl", "lift coefficient Cl")):
    a, b = solver[key], predicted[key]
    print(f"  {name:24}{a:10.4f}{b:12.4f}{b - a:+12.4f}")
PYTHON
)
printf '%s\n' "$forces_table"
show "$meshard" render "$out/predicted_026.vtp" --color-by pressure --range -600,400 -o "$out/predicted_026.png"
show "$meshard" render "$sample/boundary_026.vtp" --color-by pMean --range -600,400 -o "$out/solver_026.png"
end

# --- what happened ---------------------------------------------------------------------------------------------------------
printf '\n=== Done\n\n'
total=0
for i in "${!step_names[@]}"; do
  printf '  %7.1f s  %s\n' "${step_seconds[$i]}" "${step_names[$i]}"
  total=$(awk -v a="$total" -v b="${step_seconds[$i]}" 'BEGIN { printf "%.1f", a + b }')
done
printf '  %7.1f s  in all\n\n%s\n' "$total" "$forces_table"
cat <<TEXT

  The model saw fifteen bodies for half a minute; more bodies and epochs make it better (docs/accuracy.md says how far; apps/sample/README.md what the data are).

  In ${out#"$root"/}:
    shards/mesh.pvtp       the surface in 4 shards with ghost cells; open in ParaView, colour by PartitionId
    predicted_026.vtp      body 026 with the predicted \`pressure\` and \`wss\` beside the solver's \`pMean\` and \`wallShearStressMean\`
    predicted_026.png      the predicted pressure, and solver_026.png the solver's; shards.png the shards
    runs/ahmed             the run: metrics.jsonl, checkpoints, its configuration; report/report.html says whether to trust it

  Next: your own cases.  meshard train apps/sample/ahmed.yaml data.root=/your/cases data.surface='run_*/boundary_*.vtp' ...
        all settings:    meshard train --list-keys
TEXT
