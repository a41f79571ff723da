# SPDX-License-Identifier: Apache-2.0
"""Ranks of one run that were started differently."""
import random
import shutil
import socket
import time

from runner import PROGRAM, Case
from samples import copy_sample, put_training, sample

TRAIN = ("train", "car.yaml", "training.max_steps=2")


def free_port():
    """Below the ports that the system gives to who asks for any: mpirun of another test would take it before rank 0 does."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as found:
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
            return str(port)


def of_torchrun(rank, size, port):
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def of_srun(rank, size, port):
    return {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(size), "SLURM_NTASKS": str(size), "SLURM_LOCALID": str(rank), "SLURM_STEP_ID": "0",
            "SLURM_JOB_ID": port, "SLURM_JOB_NODELIST": "localhost", "MASTER_PORT": port, "MESHARD_BACKEND": "gloo"}


class Disagreement(Case):
    timeout = 300

    def setUp(self):
        super().setUp()
        put_training(self.folder)

    def start_rank(self, description, of_launcher):
        """A description is words and, on request, environment variables, the rank's working folder and program."""
        words, *more = description
        environment, cwd, program = (*more, *({}, self.folder, PROGRAM)[len(more):])
        return self.start(program, *words, environment={**of_launcher, "MESHARD_TIMEOUT_SECONDS": "60", **environment}, cwd=cwd)

    def started(self, *ranks, launcher=of_torchrun):
        port = free_port()
        processes = [self.start_rank(rank, launcher(number, len(ranks), port)) for number, rank in enumerate(ranks)]
        return [process.result() for process in processes]

    def assert_refused(self, ranks, *texts, launcher=of_torchrun):
        begin = time.monotonic()
        for result in self.started(*ranks, launcher=launcher):
            self.assert_fails(result, 2, "the ranks were started differently", *texts)
        self.assertLess(time.monotonic() - begin, 20)
        self.assertFalse((self.folder / "runs").exists())

    def mpirun(self, *ranks):
        """Each rank is words and, on request, options of mpirun."""
        self.needs("mpirun")
        words = []
        for rank, *options in ranks:
            words += [":"] * bool(words) + ["-np", 1, *options, PROGRAM, *rank]
        return self.run_words("mpirun", *words)

    def assert_refused_under_mpirun(self, ranks, *texts):
        result = self.mpirun(*ranks)
        self.assertEqual(result.code, 2, str(result))
        lines = [line for line in result.err.splitlines() if line.startswith("meshard")]
        self.assertEqual(len(lines), 1, str(result))
        for text in ("the ranks were started differently", *texts):
            self.assertIn(text, lines[0])
        self.assertFalse((self.folder / "runs").exists())

    def test_in_a_setting_is_refused(self):
        other = (*TRAIN, "training.optimizer.lr=1e-4")
        text = "training.optimizer.lr is '0.001' on ranks 0, 2 and '1e-04' on rank 1"
        self.assert_refused([(TRAIN,), (other,), (TRAIN,)], text)
        self.assert_refused([(TRAIN,), (other,), (TRAIN,)], text, launcher=of_srun)
        self.assert_refused_under_mpirun([(TRAIN,), (other,), (TRAIN,)], text)

    def test_in_a_setting_that_decides_the_messages_is_refused(self):
        for words, text in (("training.num_epochs=9", "training.num_epochs is '2' on rank 0 and '9' on rank 1"), ("run_id=b", "run_id is 'car'"),
                            ("model.n_hidden=32", "model.n_hidden is '16'"), ("parallel.backend=gloo", "parallel.backend is 'auto'"), ("seed=1", "seed is '0'")):
            self.assert_refused_under_mpirun([(TRAIN,), ((*TRAIN, words),)], text)
            self.assert_refused([(TRAIN,), ((*TRAIN, words),)], text)

    def test_in_the_verb_is_refused(self):
        predict = ("predict", sample("runs") / "car", sample("body.vtp"), "-o", "new.vtp")
        text = "the verb is 'train' on rank 0 and 'predict' on rank 1"
        self.assert_refused([(TRAIN,), (predict,)], text)
        self.assert_refused_under_mpirun([(TRAIN,), (predict,)], text)
        copy_sample("box.vtu", self.folder / "box.vtu")
        self.assert_refused_under_mpirun([(TRAIN,), (("partition", "box.vtu", "-n", 2, "-o", "cut"),)], "the verb is 'train' on rank 0 and 'partition' on rank 1")
        self.assertNotIn("cut", self.names())

    def test_with_a_verb_of_one_rank_is_refused(self):
        """It would never answer the others, which wait in MPI."""
        for words in (("info", self.folder / "cases/run_1/boundary_1.vtp"), ("convert", self.folder / "cases/run_1/boundary_1.vtp", "new.vtp")):
            begin = time.monotonic()
            result = self.mpirun((TRAIN,), (words,))
            self.assertEqual(result.code, 2, str(result))
            self.assertIn(f"meshard {words[0]}: {words[0]} runs on one rank, and 2 were started.", result.err)
            self.assertLess(time.monotonic() - begin, 20)
        self.assertNotIn("new.vtp", self.names())
        self.assert_good(self.mpirun((words, "-x", "MESHARD_LAUNCH=single"), (words, "-x", "MESHARD_LAUNCH=single")))

    def test_with_a_verb_of_one_rank_is_refused_without_mpi_too(self):
        """Each of the processes would do the whole, and a rank with another verb would wait for them."""
        for launcher in (of_torchrun, of_srun):
            convert = ("convert", self.folder / "cases/run_1/boundary_1.vtp", "new.vtp")
            for result in self.started((convert,), (convert,), launcher=launcher):
                self.assert_fails(result, 2, "convert runs on one rank, and 2 were started", "without mpirun, srun or torchrun", "MESHARD_LAUNCH=single")
            copy_sample("box.vtu", self.folder / "box.vtu")
            partition = ("partition", "box.vtu", "-n", 2, "-o", "cut")
            for result in self.started((partition,), (partition,), launcher=launcher):
                self.assert_fails(result, 2, "the ranks of partition meet over MPI, and 2 were started without it", "mpirun", "MESHARD_LAUNCH=single")
            self.assertEqual([name for name in self.names() if name in ("new.vtp", "cut")], [])
            for result in self.started((convert, {"MESHARD_LAUNCH": "env"}), (convert, {"MESHARD_LAUNCH": "env"}), launcher=launcher):
                self.assert_fails(result, 2, "convert runs on one rank, and 2 were started")
        alone = {"MESHARD_LAUNCH": "single"}
        for result in self.started((convert, alone), (("partition", "box.vtu", "-n", 2, "-o", "cut"), alone)):
            self.assert_good(result)
        self.assert_good(self.meshard("info", "box.vtu", environment={"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "1"}))   # a batch script is one process
        self.assert_good(self.meshard("info", "box.vtu", environment=of_torchrun(0, 1, "1")))

    def test_of_ranks_that_never_come_to_mpi_ends_in_time(self):
        single = ("bench", "--points", 20_000, "--repeats", 200)
        result = self.mpirun((TRAIN, "-x", "MESHARD_TIMEOUT_SECONDS=2"), (single, "-x", "MESHARD_LAUNCH=single"))
        self.assertEqual(result.code, 5, str(result))
        self.assertIn("other ranks of this run did not come to MPI within MESHARD_TIMEOUT_SECONDS", result.err)

    def test_in_an_option_is_refused(self):
        copy_sample("box.vtu", self.folder / "box.vtu")
        cuts = [(("partition", "box.vtu", "-n", n, "-o", "cut"),) for n in (2, 3)]
        self.assert_refused_under_mpirun(cuts, "--num-parts is '2' on rank 0 and '3' on rank 1")
        self.assert_refused([(("bench", "--points", points, "--repeats", 1),) for points in (200, 300)], "--points is '200' on rank 0 and '300' on rank 1")
        run = sample("runs") / "car"
        bodies = [(("predict", run, sample(name), "-o", "new.vtp"),) for name in ("body.vtp", "cases/run_1/boundary_1.vtp")]
        self.assert_refused(bodies, "body.vtp", "boundary_1.vtp")

    def test_in_the_environment_is_refused(self):
        for name, value in (("MESHARD_TIMEOUT_SECONDS", "50"), ("MESHARD_BACKEND", "gloo"), ("MESHARD_BACKEND", "shm"), ("MESHARD_ANY", "1")):
            self.assert_refused([(TRAIN,), (TRAIN,), (TRAIN, {name: value})], name, f"'{value}' on rank 2")
            self.assert_refused_under_mpirun([(TRAIN,), (TRAIN,), (TRAIN, "-x", f"{name}={value}")], f"{name} is not set on ranks 0, 1 and '{value}' on rank 2")

    def test_in_the_number_of_ranks_is_refused(self):
        self.assert_refused([(TRAIN,), (TRAIN, {"WORLD_SIZE": "3"})], "the number of ranks is '2' on rank 0 and '3' on rank 1")

    def test_in_the_working_folder_is_refused(self):
        other = self.folder / "other"
        other.mkdir()
        put_training(other)
        text = ("/other/car.yaml", "on rank 1")
        self.assert_refused([(TRAIN,), (TRAIN, {}, other)], *text)
        self.assert_refused_under_mpirun([(TRAIN,), (TRAIN, "-wdir", other)], *text)

    def test_in_the_data_is_refused(self):
        """Under the same words: a link in each working folder leads to other cases."""
        other = self.folder / "other"
        shutil.copytree(self.folder / "cases", other)
        with open(other / "run_2/boundary_2.vtp", "a") as file:
            file.write("\n")
        self.assert_refused([(TRAIN,), ((*TRAIN, "data.root=other"),)], "data.root is 'cases' on rank 0 and 'other' on rank 1")
        words = (*TRAIN, "data.root=${env:DATA}")
        self.assert_refused([(words, {"DATA": "cases"}), (words, {"DATA": "other"})], "data.root is 'cases' on rank 0 and 'other' on rank 1")
        folders = [self.folder / "a", self.folder / "b"]
        for folder, data in zip(folders, (self.folder / "cases", other)):
            folder.mkdir()
            (folder / "cases").symlink_to(data)
        ranks = [(("train", self.folder / "car.yaml", "training.max_steps=2"), {}, folder) for folder in folders]
        self.assert_refused(ranks, "case 2 is", "bytes)", "on rank 0 and", "on rank 1")

    def test_in_the_version_is_refused(self):
        """Another version, made by writing to a copy of the program."""
        version = self.meshard("--version").out.split()[1]
        another = f"9{version[1:]}"
        other = self.folder / "bin"
        other.mkdir()
        for name in ("meshard", "meshard-models"):
            (other / name).write_bytes(PROGRAM.with_name(name).read_bytes().replace(version[:4].encode(), another[:4].encode()))
            (other / name).chmod(0o755)
        if not self.run_words(other / "meshard", "--version").out.startswith(f"meshard {another}\n"):
            self.skipTest("this compiler keeps the version in other bytes")
        self.assert_refused([(TRAIN,), (TRAIN, {}, self.folder, other / "meshard")], f"the version of meshard is '{version}' on rank 0 and '{another}' on rank 1")

    def test_in_words_that_mean_the_same_is_none(self):
        (self.folder / "link.yaml").symlink_to("car.yaml")
        ranks = [(("train", "car.yaml", "training.max_steps=2", "seed=3"),), (("train", self.folder / "link.yaml", "seed=3", "training.max_steps=2"),)]
        for result in self.started(*ranks):
            self.assert_good(result)

    def test_in_how_a_number_is_written_is_none(self):
        one = ("training.optimizer.lr=0.001", "training.max_steps=2", "training.optimizer.betas=[0.9, 0.999]", "data.split={train: 0.5, val: 0.5}")
        other = ("training.optimizer.lr=1e-3", "training.max_steps=2.0", "training.optimizer.betas=[9e-1, .999]", "data.split={train: 5e-1, val: +0.5}")
        words = ("~data.split", "training.optimizer.weight_decay=")
        for result in self.started((("train", "car.yaml", *words[:1], *one, words[1] + "0"),), (("train", "car.yaml", *words[:1], *other, words[1] + "-0"),)):
            self.assert_good(result)
        shutil.rmtree(self.folder / "runs")
        self.assert_refused([((*TRAIN, "run_id=1e3"),), ((*TRAIN, "run_id=1000"),)], "run_id is '1e3' on rank 0 and '1000' on rank 1")   # a text
        self.assert_refused([((*TRAIN, "training.optimizer.lr=0.1"),), ((*TRAIN, "training.optimizer.lr=0.10000000000000002"),)],
                            "training.optimizer.lr is '0.1' on rank 0 and '0.10000000000000002' on rank 1")

    def test_of_a_rank_that_is_started_twice_ends_the_second(self):
        """Rank 2 starts when one of the two ranks 1 has ended, so that the run lasts until then."""
        port = free_port()
        processes = [self.start_rank((TRAIN,), of_torchrun(number, 3, port)) for number in (0, 1, 1)]
        processes[0].wait_for(lambda: any(process.has_ended() for process in processes[1:]), "the end of a rank 1")
        ended = [process for process in processes[1:] if process.has_ended()]
        self.assertEqual(len(ended), 1)
        self.assert_fails(ended[0].result(), 2, "rank 1 of 3 is process ", "Give each its own RANK")
        processes.append(self.start_rank((TRAIN,), of_torchrun(2, 3, port)))
        for process in processes:
            if process is not ended[0]:
                self.assert_good(process.result())

    def test_of_a_rank_that_nobody_waits_for_ends_it_in_time(self):
        begin = time.monotonic()
        alone = self.start_rank((TRAIN, {"MESHARD_TIMEOUT_SECONDS": "2"}), of_torchrun(1, 2, free_port())).result()
        self.assert_fails(alone, 5, "could not reach the rendezvous", "Connection refused", "Is rank 0 running there")
        self.assertEqual(alone.err.count("\n"), 1, alone)
        self.assertLess(time.monotonic() - begin, 7)   # the limit, and beginning

    def test_of_a_rank_in_the_file_of_an_earlier_run_ends_it(self):
        meeting = {"MESHARD_RENDEZVOUS": f"file://{self.folder}/meeting", "MESHARD_TIMEOUT_SECONDS": "2"}
        for text, code in (("rank 1 of 2 did not connect within 2 s", 5), (f"the rendezvous {self.folder}/meeting is that of an earlier run", 2)):
            self.assert_fails(self.start_rank((TRAIN, meeting), of_torchrun(0, 2, free_port())).result(), code, text)

    def test_of_a_rank_whose_rendezvous_is_another_program_ends_it_in_time(self):
        with socket.create_server(("127.0.0.1", 0)) as other:   # its connections are accepted, and never answered
            begin = time.monotonic()
            result = self.start_rank((TRAIN, {"MESHARD_TIMEOUT_SECONDS": "2"}), of_torchrun(1, 2, str(other.getsockname()[1]))).result()
        self.assert_fails(result, 5, "could not reach the rendezvous", "what listens there does not answer as rank 0 does", "is the port free")
        self.assertEqual(result.err.count("\n"), 1, result)
        self.assertLess(time.monotonic() - begin, 7)

    def test_of_a_rank_that_fails_early_ends_the_others(self):
        for bad in range(2):
            ranks = [(TRAIN,), (TRAIN,)]
            ranks[bad] = (("train", "nowhere.yaml"),)
            begin = time.monotonic()
            results = self.started(*ranks)
            self.assertLess(time.monotonic() - begin, 20)
            self.assert_fails(results[bad], 3, "nowhere.yaml cannot be read")
            self.assert_fails(results[1 - bad], 5, f"rank {bad} has failed: meshard train: configuration nowhere.yaml cannot be read")
