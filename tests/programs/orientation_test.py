# SPDX-License-Identifier: Apache-2.0
"""Surfaces that are turned inside out: what is said of them, what turns them, and what a run remembers."""
import json
import re

from evaluation_test import arrays_of
from training_steps_test import Steps


def turned(text, share=1.0):
    """The same surface with the points of the first polygons in the opposite order."""
    match = re.search(r'(Name="connectivity"[^>]*>)([^<]*)(<)', text)
    numbers = match.group(2).split()
    quads = [numbers[i:i + 4] for i in range(0, len(numbers), 4)]
    for quad in quads[: round(share * len(quads))]:
        quad.reverse()
    return text[: match.start(2)] + " ".join(word for quad in quads for word in quad) + text[match.end(2):]


class Orientation(Steps):
    def turn(self, number, share=1.0):
        path = self.folder / f"cases/run_{number}/boundary_{number}.vtp"
        path.write_text(turned(path.read_text(), share))

    def copy(self, name, share):
        (self.folder / name).write_text(turned((self.folder / "cases/run_4/boundary_4.vtp").read_text(), share))
        return name

    def predicted(self, run, name, *words):
        result = self.meshard("predict", f"runs/{run}", name, "-o", "out.vtp", *words)
        self.assert_good(result)
        return arrays_of(self.folder / "out.vtp")["pressure"], result.err

    def test_is_compared_with_that_of_the_training_cases(self):
        trained = self.train("car", 1)
        self.assertNotIn("inward", trained.out + trained.err)
        right, quiet = self.predicted("car", self.copy("right.vtp", 0))
        self.assertEqual(quiet, "")
        inside_out, warning = self.predicted("car", self.copy("inside_out.vtp", 1))
        self.assertIn("the surface is closed and its normals point inwards, and those of the training cases point outwards", warning)
        self.assertIn("--orient outward", warning)
        self.assertGreater(max(abs(a - b) for a, b in zip(right, inside_out, strict=True)), 1e-3 * max(map(abs, right)))
        mixed, warning = self.predicted("car", self.copy("mixed.vtp", 0.25))
        self.assertIn("its normals are mixed", warning)
        for name in ("inside_out.vtp", "mixed.vtp"):
            for ranks in ("1", "2"):
                found, quiet = self.predicted("car", name, "--orient", "outward", "--nproc", ranks)
                self.assertEqual(quiet, "")
                for a, b in zip(found, right, strict=True):
                    self.assertAlmostEqual(a, b, delta=1e-5 * max(map(abs, right)))

    def test_of_training_cases_is_told_and_turned(self):
        for number in (1, 2):
            self.turn(number, 1.0 if number == 1 else 0.5)
        told = self.train("as_is", 1, "--accept-data")
        self.assertRegex(told.out + told.err, r"of \d surfaces of training cases, 1 points inward, 1 is turned partly inward")
        quiet = self.train("outward", 1, "data.orient=outward")
        self.assertNotIn("inward", quiet.out + quiet.err)
        for number in (1, 2):
            self.turn(number, 1.0 if number == 1 else 0.5)
        self.train("upright", 1)
        for a, b in zip(self.losses("outward"), self.losses("upright"), strict=True):
            self.assertAlmostEqual(a, b, delta=1e-5 * b)
        # What the run did is done in prediction, too.
        right, _ = self.predicted("outward", self.copy("right.vtp", 0))
        found, quiet = self.predicted("outward", self.copy("inside_out.vtp", 1))
        self.assertEqual(quiet, "")
        for a, b in zip(found, right, strict=True):
            self.assertAlmostEqual(a, b, delta=1e-5 * max(map(abs, right)))
        evaluated = self.meshard("evaluate", "runs/outward", "inside_out.vtp", "-o", "evaluation", "--orient", "as-is")
        self.assertIn("normals point inwards", evaluated.err)

    def numbers_of(self, file):
        """What of the judged case does not depend on time and names."""
        case = json.loads((self.folder / file).read_text())
        case = case["runs"][0]["evaluation"]["cases"][0] if "runs" in case else case["cases"][0]
        return {f"{field}.{name}": value for field, values in case["fields"].items() for name, value in values.items() if not isinstance(value, dict)}

    def test_of_judged_cases_is_told_and_turned(self):
        words = ("data.inputs=[points, normals, sdf]", "data.wall=run_*/boundary_*.vtp")
        self.train("car", 1, *words)
        right = self.meshard("evaluate", "runs/car", "4", "-o", "right")
        self.assert_good(right)
        self.assertNotIn("normals", right.err)
        expected = self.numbers_of("right/evaluation.json")
        for share, text in ((1.0, "its normals point inwards, and those of the training cases point outwards"), (0.3, "its normals are mixed")):
            upright = (self.folder / "cases/run_4/boundary_4.vtp").read_text()
            self.turn(4, share)
            told = self.meshard("evaluate", "runs/car", "4", "-o", "told")
            self.assert_good(told)
            self.assertEqual(told.err.count(text), 1, told.err)   # of the surface that is its own wall, once
            self.assertIn("--orient outward turns it", told.err)
            found = self.numbers_of("told/evaluation.json")
            self.assertGreater(abs(found["pressure.rel_l2"] - expected["pressure.rel_l2"]), 1e-4 * expected["pressure.rel_l2"])
            predicted = self.meshard("predict", "runs/car", "cases/run_4/boundary_4.vtp", "--wall", "cases/run_4/boundary_4.vtp", "-o", "out.vtp")
            self.assert_good(predicted)
            self.assertEqual(predicted.err.count(text), 1, predicted.err)
            for verb, ranks in (("evaluate", 1), ("evaluate", 2), ("report", 2)):
                words = ("4",) if verb == "evaluate" else ("--cases", "4")
                quiet = self.meshard(verb, "runs/car", *words, "-o", "turned", "--orient", "outward", "--nproc", ranks)
                self.assert_good(quiet)
                self.assertNotIn("normals", quiet.out + quiet.err)
                for name, value in self.numbers_of("turned/evaluation.json" if verb == "evaluate" else "turned/report.json").items():
                    self.assertAlmostEqual(value, expected[name], delta=1e-5 * max(1, abs(expected[name])), msg=f"{verb} {name}")
            (self.folder / "cases/run_4/boundary_4.vtp").write_text(upright)

    def test_of_walls_is_told_and_turned(self):
        wall = self.copy("inside_out.vtp", 1)
        for sign in ("normals", "winding"):
            result = self.meshard("derive", "cases/run_4/boundary_4.vtp", "-o", "d.vtp", "--wall-distance", wall, "--sign", sign, "--at", "cells")
            self.assert_good(result)
            effect = "what is inside counts as outside there" if sign == "winding" else "signs are exchanged there"
            self.assertIn(f"the surface is closed and its normals point inwards, so that {effect}", result.err)
            as_is = arrays_of(self.folder / "d.vtp")["Wall Distance"]
            result = self.meshard("derive", "cases/run_4/boundary_4.vtp", "-o", "d.vtp", "--wall-distance", wall, "--sign", sign, "--at", "cells", "--orient", "outward")
            self.assert_good(result)
            self.assertEqual(result.err, "")
            turned_back = arrays_of(self.folder / "d.vtp")["Wall Distance"]
            upright = self.meshard("derive", "cases/run_4/boundary_4.vtp", "-o", "d.vtp", "--wall-distance", "cases/run_4/boundary_4.vtp", "--sign", sign, "--at", "cells")
            self.assert_good(upright)
            for a, b in zip(turned_back, arrays_of(self.folder / "d.vtp")["Wall Distance"], strict=True):
                self.assertAlmostEqual(a, b, delta=1e-6)
            self.assertNotEqual([value < 0 for value in as_is], [value < 0 for value in turned_back])
        told = self.train("sdf", 1, "data.inputs=[points, sdf]", "data.wall=../inside_out.vtp")
        self.assertRegex(told.out + told.err, r"of \d walls of training cases, \d point inward")
        self.train("turned", 1, "data.inputs=[points, sdf]", "data.wall=../inside_out.vtp", "data.orient=outward")
        self.train("upright_wall", 1, "data.inputs=[points, sdf]", f"data.wall=../{self.copy('right.vtp', 0)}")
        for a, b in zip(self.losses("turned"), self.losses("upright_wall"), strict=True):
            self.assertAlmostEqual(a, b, delta=1e-5 * b)
        result = self.meshard("predict", "runs/upright_wall", "cases/run_4/boundary_4.vtp", "-o", "out.vtp", "--wall", "inside_out.vtp")
        self.assertIn("inside_out.vtp: the surface is closed and its normals point inwards", result.err)

    def test_is_in_info_and_forces(self):
        name = self.copy("mixed.vtp", 0.25)
        self.assertIn("normals of 17", self.meshard("info", name).out)
        self.assertEqual(json.loads(self.meshard("info", name, "--json").out)["surface"]["normals"], "mixed")
        result = self.meshard("forces", name, "--json")
        self.assertIn("its normals are mixed", result.err)
        result, upright = self.meshard("forces", name, "--orient", "outward", "--json"), self.meshard("forces", self.copy("right.vtp", 0), "--json")
        self.assertEqual(result.err, "")
        found, expected = json.loads(result.out), json.loads(upright.out)
        self.assertAlmostEqual(found["drag"], expected["drag"], delta=1e-9 * abs(expected["drag"]))
