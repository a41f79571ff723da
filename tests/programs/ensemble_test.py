# SPDX-License-Identifier: Apache-2.0
"""`meshard predict` with several runs, with draws of dropout, with forces, and beyond what was trained on."""
import math
import re
import statistics

from evaluation_test import area_vectors, arrays_of
from runner import Case
from samples import data_array, put_training, write_body


class Ensemble(Case):
    timeout = 300

    def setUp(self):
        super().setUp()
        put_training(self.folder)

    def good(self, *words):
        result = self.meshard(*words)
        self.assert_good(result)
        return result

    def train(self, run, *words):
        self.good("train", "car.yaml", f"run_id={run}", "training.max_steps=3", "data.reference.U_inf=[40, 0, 0]", "data.forces.area=Aref", "~data.cases",
                  "~data.split", "data.split.train=['1', '2', '3']", *words)

    def test_gives_mean_and_spread_of_fields_and_of_drag(self):
        for seed in (1, 2, 3):
            self.train(f"r{seed}", f"seed={seed}", *(["data.inputs=[points]"] if seed == 3 else []))   # of other inputs, too
        body = "cases/run_4/boundary_4.vtp"
        single, drag = [], []
        for seed in (1, 2, 3):
            out = self.good("predict", f"runs/r{seed}", body, "-o", f"p{seed}.vtp", "--forces", "--set", "Aref=0.1").out
            single.append(arrays_of(self.folder / f"p{seed}.vtp"))
            drag.append(float(re.search(r"Cd (-?[0-9.]+), Cl", out)[1]))
        truth = arrays_of(self.folder / body)
        vectors = area_vectors(truth)
        sign = math.copysign(1, sum(arrays["wss"][3 * i] * math.hypot(*v) for arrays in single[:1] for i, v in enumerate(vectors)))
        for arrays, value in zip(single, drag):
            force = sum(-p * v[0] + sign * arrays["wss"][3 * i] * math.hypot(*v) for i, (p, v) in enumerate(zip(arrays["pressure"], vectors)))
            self.assertAlmostEqual(value, force / (0.5 * 1600 * 0.1), 4)
        for ranks in (1, 2, 3):
            out = self.good("predict", "runs/r1", "runs/r2", "runs/r3", body, "-o", f"all{ranks}.vtp", "--forces", "--set", "Aref=0.1", "--nproc", ranks).out
            together = arrays_of(self.folder / f"all{ranks}.vtp")
            for field in ("pressure", "wss"):
                for i, (mean, spread) in enumerate(zip(together[field], together[field + "_spread"])):
                    values = [arrays[field][i] for arrays in single]
                    scale = max(map(abs, values)) + 1e-9
                    self.assertLess(abs(mean - statistics.fmean(values)), 1e-4 * scale)
                    self.assertLess(abs(spread - statistics.stdev(values)), 1e-4 * scale)
            found = re.search(r"Cd (-?[0-9.]+) ± ([0-9.e-]+), .*\(3 predictions\)", out)
            self.assertAlmostEqual(float(found[1]), statistics.fmean(drag), 4)
            self.assertAlmostEqual(float(found[2]) / statistics.stdev(drag), 1, 1)

    def test_of_one_run_twice_or_with_a_bad_member_warns(self):
        for seed in (1, 2):
            self.train(f"r{seed}", f"seed={seed}", "data.split={train: ['1', '2'], val: ['3']}", "training.max_steps=100", "training.num_epochs=60", "training.optimizer.lr=5e-3")
        self.train("bad", "seed=3", "data.split={train: ['1', '2'], val: ['3']}", "training.num_epochs=1", "training.max_steps=1")
        self.train("again", "seed=1", "data.split={train: ['1', '2'], val: ['3']}", "training.max_steps=100", "training.num_epochs=60", "training.optimizer.lr=5e-3")
        body = "cases/run_4/boundary_4.vtp"

        def warnings(*runs):
            return self.good("predict", *(f"runs/{run}" for run in runs), body, "-o", "out.vtp").err

        self.assertNotIn("warning", warnings("r1", "r2"))
        self.assertIn("is the same model as runs/r1/", warnings("r1", "r2", "r1"))
        self.assertIn("runs/again/checkpoints/best.safetensors is the same model as runs/r1/", warnings("r1", "again"))   # of the same seed
        self.assertRegex(warnings("r1", "bad"), "runs/bad/.* had a relative error in validation of .* runs/r1/")

    def test_of_other_fields_is_refused(self):
        self.train("r1")
        self.train("r2", "~data.fields.wss")
        self.assert_fails(self.meshard("predict", "runs/r1", "runs/r2", "cases/run_4/boundary_4.vtp", "-o", "out.vtp"), 3, "pressure:1, wss:3 on cells",
                          "only if their fields are the same")
        self.assert_fails(self.meshard("predict", "runs/r1", "cases/run_4/boundary_4.vtp", "-o", "out.vtp", "--dropout-draws", 4), 3, "no dropout")
        self.assertFalse((self.folder / "out.vtp").exists())

    def predict(self, *runs, words=()):
        return self.meshard("predict", *(f"runs/{run}" for run in runs), "cases/run_4/boundary_4.vtp", "-o", "out.vtp", *words)

    def test_of_another_meaning_is_refused(self):
        """A mean of other quantities, or of other flows, is none."""
        self.train("r1")
        others = {"static": ("data.fields.pressure.kind=static", "data.reference.rho=1.2"), "fast": ("data.reference.U_inf=[60, 0, 0]",),
                  "across": ("data.reference.U_inf=[0, 40, 0]",), "small": ("data.forces.area=0.2",), "side": ("data.forces.up=[0, 1, 0]",),
                  "long": ("data.forces.length=2", "data.forces.area=0.1"), "about": ("data.forces.length=2", "data.forces.center=[1, 0, 0]"),
                  "turned": ("data.orient=outward",), "named": ("data.orient=outward", "data.normals=Nrm")}
        for name, words in others.items():
            self.train(name, *words, "--accept-data")
        forces = ("--forces", "--set", "Aref=0.1")
        for other, words, texts in (("static", (), ("runs/static/", "'pressure' of the kind static", "runs/r1/", "of the kind kinematic")),
                                    ("fast", (), ("U_inf is 40 by runs/r1/", "and 60 by runs/fast/", "predict with each alone")),
                                    ("across", (), ("the direction of U_inf is (1, 0, 0) by runs/r1/", "(0, 1, 0)")),
                                    ("turned", (), ("learnt surfaces of different orientation (data.orient)",)),
                                    ("small", forces, ("data.forces.area is 0.1 by runs/r1/", "0.2 by runs/small/")),
                                    ("side", forces, ("data.forces.up is (0, 0, 1)", "(0, 1, 0) by runs/side/"))):
            for runs in (("r1", other), (other, "r1"))[:1 if words else 2]:   # of the first run the area is not asked for
                self.assert_fails(self.predict(*runs, words=words), 3, *(texts if runs[0] == "r1" else texts[-1:]))
        self.assert_fails(self.predict("turned", "named"), 3, "runs/named/", "'Nrm'", "runs/turned/", "'Normals'", "Predict with each alone")
        self.assert_fails(self.predict("long", "about", words=forces[:1]), 3, "data.forces.center is (0, 0, 0) by runs/long/", "(1, 0, 0) by runs/about/")
        self.assertFalse((self.folder / "out.vtp").exists())
        # Nothing else depends on these, and a run without a length has no say in moments.
        self.assert_good(self.predict("r1", "turned", words=("--orient", "outward")))
        self.assert_good(self.predict("r1", "small"))
        self.assert_good(self.predict("r1", "side"))
        self.assert_good(self.predict("r1", "long", words=forces))

    def test_turns_the_normals_that_a_run_is_told_whichever_comes_first(self):
        for name, words in (("plain", ("data.inputs=[points]",)), ("told", ("data.normals=Nrm", "seed=1"))):
            self.train(name, "data.orient=outward", *words)
        body = self.folder / "cases/run_4/boundary_4.vtp"
        arrays, text = arrays_of(body), body.read_text()
        inward = [p for i in range(0, len(arrays["connectivity"]), 4) for p in arrays["connectivity"][i:i + 4][::-1]]
        begin = text.index(">", text.index('Name="connectivity"')) + 1
        text = text[:begin] + " ".join(map(str, inward)) + text[text.index("</DataArray>", begin):]
        normals = [x / math.hypot(*vector) for vector in area_vectors({**arrays, "connectivity": inward}) for x in vector]
        body.write_text(text.replace("</CellData>", data_array("Nrm", "Float32", 3, normals) + "</CellData>"))
        found = []
        for runs in (("plain",), ("told",), ("plain", "told"), ("told", "plain")):
            self.assert_good(self.predict(*runs))
            found.append(arrays_of(self.folder / "out.vtp")["pressure"])
        for plain, told, *means in zip(*found):
            for mean in means:
                self.assertAlmostEqual(mean, (plain + told) / 2, delta=1e-4 * (abs(plain) + abs(told)))

    def test_by_other_ways_to_the_same_fields_is_their_mean(self):
        """Other targets, and U_inf as a number or of the case: fields of the same kind and flow."""
        cp = "data.targets=nondimensional"
        self.train("r1")
        self.train("cp", cp)
        self.train("fast", cp, "data.reference.U_inf=[60, 0, 0]")
        self.good("train", "car.yaml", "run_id=told", "training.max_steps=3", cp, "data.reference.U_inf=[speed, 0, 0]")
        for runs, words in ((("r1", "cp"), ()), (("cp", "fast"), ("--set", "U_inf=50")), (("r1", "told"), ("--set", "speed=40"))):
            single = []
            for run in runs:
                self.assert_good(self.predict(run, words=words if run != "r1" else ()))
                single.append(arrays_of(self.folder / "out.vtp")["pressure"])
            self.assert_good(self.predict(*runs, words=words))
            for mean, values in zip(arrays_of(self.folder / "out.vtp")["pressure"], zip(*single)):
                self.assertAlmostEqual(mean, statistics.fmean(values), delta=1e-4 * max(map(abs, values)))
        self.assert_fails(self.predict("cp", "fast"), 3, "U_inf is 40 by runs/cp/", "60 by runs/fast/")
        self.assert_fails(self.predict("r1", "told", words=("--set", "speed=30")), 3, "U_inf is 40 by runs/r1/", "30 by runs/told/")

    def test_replaces_an_earlier_prediction_with_a_warning(self):
        self.train("r1")
        given = "cases/run_4/boundary_4.vtp"
        for number, replaced in enumerate((False, False, True)):
            for ranks, name in ((1, f"out{number}.vtp"), (2, f"pieces{number}.pvtp")):
                result = self.good("predict", "runs/r1", given, "-o", name, "--nproc", ranks)
                text = "it has pressure_predicted, wss_predicted of an earlier prediction, which are replaced in the output"
                self.assertEqual(result.err.count(text), replaced, result.err)
            given = f"out{number}.vtp"

    def test_draws_dropout_alike_in_each_run_and_on_more_ranks(self):
        self.good("train", "car.yaml", "~model", "model.name=geotransolver", "model.n_layers=1", "model.n_hidden=16", "model.n_head=2", "model.slice_num=4",
                  "run_id=geo", "training.max_steps=2", "model.dropout=0.2", "model.concrete_dropout=true")
        body, draws = "cases/run_4/boundary_4.vtp", 60
        self.good("predict", "runs/geo", body, "-o", "plain.vtp")
        self.assertNotIn("pressure_spread", arrays_of(self.folder / "plain.vtp"))
        found = []
        for name, ranks in (("serial", 1), ("again", 1), ("sharded", 2), ("sharded_again", 2)):
            self.good("predict", "runs/geo", body, "-o", f"{name}.vtp", "--dropout-draws", draws, "--nproc", ranks)
            found.append(arrays_of(self.folder / f"{name}.vtp"))
        serial, sharded = found[0], found[2]
        self.assertEqual(serial["pressure"], found[1]["pressure"])
        self.assertEqual(sharded["pressure_spread"], found[3]["pressure_spread"])
        self.assertGreater(min(serial["pressure_spread"]), 0)
        for name in ("pressure", "pressure_spread"):   # draws go by the points' ids: the same on any number of ranks
            largest = max(map(abs, serial[name]))
            for one, other in zip(serial[name], sharded[name]):
                self.assertAlmostEqual(one, other, delta=1e-3 * largest)

    def test_warns_of_inputs_beyond_the_training_cases(self):
        self.train("r1")
        inside = self.good("predict", "runs/r1", "cases/run_2/boundary_2.vtp", "-o", "in.vtp")
        self.assertNotIn("beyond", inside.err)
        write_body(self.folder / "flat.vtp", (1.2, 0.4, 0.9))
        for ranks in (1, 2):
            result = self.good("predict", "runs/r1", "flat.vtp", "-o", "out.vtp", "--nproc", ranks)
            self.assertRegex(result.err, r"flat.vtp: beyond the training cases: points.z goes from .* in training from .* of the points are beyond")
            self.assertNotIn("points.x goes", result.err)
        self.good("train", "car.yaml", "data.constants=[speed]", "run_id=told", "training.max_steps=1")
        self.assertIn("speed is 99; in training it was 31 to 33",
                      self.good("predict", "runs/told", "cases/run_2/boundary_2.vtp", "-o", "out.vtp", "--set", "speed=99").err)
