# SPDX-License-Identifier: Apache-2.0
"""The batch scripts of docs/gpu.md, run as they stand: Slurm's commands and torchrun are stand-ins, which start the ranks on this machine."""
import json
import os
import re
import shutil
import stat
import subprocess

from runner import PROGRAM, SOURCE, Case
from samples import put_training

NODES, RANKS_A_NODE = 2, 2   # in place of what a script asks for: tests run on two cores

# Starts the tasks of a step, each with the variables that srun gives it; ends with the exit code of one that failed, if any did.
SRUN = """#!/bin/bash
tasks=$((SLURM_JOB_NUM_NODES * TASKS_A_NODE)); code=0
for ((i = 0; i < tasks; ++i)); do
  SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=$tasks SLURM_NTASKS=$tasks SLURM_PROCID=$i SLURM_LOCALID=$((i % TASKS_A_NODE)) SLURM_NODEID=$((i / TASKS_A_NODE)) "$@" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit $code
"""
# The ranks of one host, as torchrun starts them.
TORCHRUN = """#!/bin/bash
set -euo pipefail
while [[ $1 == --* ]]; do
  case $1 in
    --no-python | --rdzv-backend=c10d) ;;
    --nnodes=*) nodes=${1#*=} ;;
    --nproc-per-node=*) asked=${1#*=} ;;
    --rdzv-endpoint=*:*) endpoint=${1#*=} ;;
    *) echo "torchrun has no option $1" >&2; exit 2 ;;
  esac
  shift
done
[ "$asked" = 8 ] || { echo "a script for eight GPUs a host starts $asked ranks" >&2; exit 2; }
for ((i = 0; i < RANKS_A_NODE; ++i)); do
  RANK=$((SLURM_NODEID * RANKS_A_NODE + i)) LOCAL_RANK=$i WORLD_SIZE=$((nodes * RANKS_A_NODE)) LOCAL_WORLD_SIZE=$RANKS_A_NODE \\
    MASTER_ADDR=${endpoint%:*} MASTER_PORT=$PORT "$@" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
"""
SCONTROL = """#!/bin/bash
[ "$1 $2" = "show hostnames" ] && tr , '\\n' <<< "$3"
"""


def scripts():
    """Of docs/gpu.md: whole scripts, each a block of its own."""
    return re.findall(r"```sh\n(#!/bin/bash\n.*?)```", (SOURCE / "docs/gpu.md").read_text(), re.DOTALL)


def asked(script, name):
    return int(re.search(rf"^#SBATCH --{name}=(\d+)$", script, re.MULTILINE).group(1))


class BatchScripts(Case):
    def submit(self, script, tasks_a_node):
        """As sbatch runs a script: on the first host, with the job's variables."""
        (self.folder / "job.sh").write_text(script)
        self.assertEqual(subprocess.run(["bash", "-n", self.folder / "job.sh"]).returncode, 0)
        commands = self.folder / "commands"
        commands.mkdir()
        for name, text in (("srun", SRUN), ("torchrun", TORCHRUN), ("scontrol", SCONTROL)):
            path = commands / name
            path.write_text(text)
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        put_training(self.folder)
        environment = {"PATH": f"{commands}:{PROGRAM.parent}:{os.environ['PATH']}", "SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NUM_NODES": str(NODES), "SLURM_PROCID": "0",
                       "SLURM_NTASKS": str(NODES * tasks_a_node), "SLURM_JOB_NODELIST": "localhost", "SLURM_CPUS_PER_TASK": str(asked(script, "cpus-per-task")),
                       "TASKS_A_NODE": str(tasks_a_node), "RANKS_A_NODE": str(RANKS_A_NODE), "PORT": str(20000 + os.getpid() % 20000)}
        return self.run_words("bash", "job.sh", environment=environment)

    def check(self, script, tasks_a_node):
        result = self.submit(script, tasks_a_node)
        self.assertEqual(result.code, 0, result)
        self.assertIn(f"on {NODES * RANKS_A_NODE} rank(s)", result.out + result.err, result)
        steps = [json.loads(line) for line in (self.folder / "runs/car/metrics.jsonl").read_text().splitlines()]
        self.assertTrue(any(step["phase"] == "train_step" for step in steps), result)

    def script(self, word):
        found = [script for script in scripts() if ("torchrun" in script) == (word == "torchrun")]
        self.assertEqual(len(found), 1)
        return found[0]

    def test_start_a_rank_for_each_task(self):
        script = self.script("srun")
        self.assertEqual(asked(script, "ntasks-per-node"), asked(script, "gpus-per-node"))
        self.check(script, RANKS_A_NODE)

    def test_let_torchrun_start_the_ranks(self):
        script = self.script("torchrun")
        self.assertEqual(asked(script, "ntasks-per-node"), 1)
        self.check(script, 1)

    def test_fail_where_the_training_fails(self):
        for word, tasks in (("srun", RANKS_A_NODE), ("torchrun", 1)):
            result = self.submit(self.script(word).replace("car.yaml", "absent.yaml"), tasks)
            self.assertNotEqual(result.code, 0, result)
            self.assertIn("absent.yaml", result.err)
            shutil.rmtree(self.folder / "commands")
