# SPDX-License-Identifier: Apache-2.0
"""Series in time: what `meshard info` says of files and cases with several states."""
import json
import re

from runner import Case
from samples import write_body, write_foam_case


def write_state(path, lift, pressure, extra=""):
    """A triangle whose third corner is at height `lift`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '<VTKFile type="PolyData"><PolyData><Piece NumberOfPoints="3" NumberOfPolys="1">'
        f'<PointData><DataArray type="Float64" Name="p" format="ascii">{pressure} 0 0</DataArray>'
        f'<DataArray type="Float64" Name="mass" format="ascii">1 nan 1</DataArray>{extra}</PointData>'
        f'<Points><DataArray type="Float64" NumberOfComponents="3" format="ascii">0 0 0 1 0 0 0 1 {lift}</DataArray></Points>'
        '<Polys><DataArray type="Int64" Name="connectivity" format="ascii">0 1 2</DataArray><DataArray type="Int64" Name="offsets" format="ascii">3</DataArray></Polys>'
        '</Piece></PolyData></VTKFile>\n')


def write_index(path, states):
    path.write_text('<VTKFile type="Collection"><Collection>' + "".join(f'<DataSet timestep="{time}" file="{file}"/>' for time, file in states) + "</Collection></VTKFile>\n")


class InfoOfSeries(Case):
    def setUp(self):
        super().setUp()
        extra = '<DataArray type="Float64" Name="late" format="ascii">7 7 7</DataArray>'
        for number, (lift, pressure, more) in enumerate(((0, 1, ""), (0, 2, extra), (0, 3, extra))):
            write_state(self.folder / f"states/out_{number}.vtp", lift, pressure, more)
        write_index(self.folder / "even.pvd", [(0, "states/out_0.vtp"), (0.5, "states/out_1.vtp"), (1, "states/out_2.vtp")])
        write_index(self.folder / "uneven.pvd", [(3, "states/out_1.vtp"), (2.75, "states/out_0.vtp"), (13, "states/out_2.vtp")])

    def series(self, *words):
        result = self.meshard("info", *words, "--json")
        self.assert_good(result)
        return json.loads(result.out)["series"]

    def test_lists_their_times(self):
        even, uneven = self.meshard("info", "even.pvd"), self.meshard("info", "uneven.pvd")
        self.assertIn("  states      3, times 0 to 1, even steps of 0.5\n", even.out)
        self.assertIn("  states      3, times 2.75 to 13, uneven steps of 0.25 to 10\n", uneven.out)
        self.assertNotIn("over all states", even.out)
        self.assertRegex(even.out, r"point +p +Float64 +0 to 3\n")   # the latest state
        self.assertEqual(self.series("uneven.pvd"), {"num_states": 3, "first_time": 2.75, "last_time": 13, "even_steps": False, "least_step": 0.25, "most_step": 10,
                                                     "times": [2.75, 3, 13]})

    def test_says_what_changes(self):
        result = self.meshard("info", "even.pvd", "--changes")
        self.assert_good(result)
        table = [re.split(r" {2,}", line.strip()) for line in result.out.split("over all states\n")[1].splitlines()]
        self.assertEqual(table, [["points", "constant"], ["cells", "constant"], ["point", "p", "changes"], ["point", "mass", "constant"],
                                 ["point", "late", "constant", "in 2 of 3 states"]])
        write_state(self.folder / "states/out_1.vtp", 0.1, 2)
        changed = self.series("even.pvd", "--changes")
        self.assertEqual((changed["points_change"], changed["cells_change"]), (True, False))
        self.assertEqual(changed["arrays"][2], {"association": "point", "name": "late", "num_states": 1, "changes": False})

    def test_of_cases_are_their_time_folders(self):
        write_foam_case(self.folder / "case")
        self.assertNotIn("states", self.meshard("info", "case").out)   # one time
        (self.folder / "case/2.5").mkdir()
        (self.folder / "case/2.5/p").write_bytes((self.folder / "case/10/p").read_bytes())
        self.assertEqual(self.series("case")["times"], [2.5, 10])
        self.assertIn("  states      2, times 2.5 to 10, even steps of 7.5\n", self.meshard("info", "case").out)

    def test_of_images_are_listed(self):
        for number in range(2):
            values = " ".join(str(number + i) for i in range(6))
            (self.folder / f"states/{number}.vti").write_text(
                '<VTKFile type="ImageData" version="0.1" byte_order="LittleEndian"><ImageData WholeExtent="0 2 0 1 0 0" Origin="0 0 0" Spacing="1 1 1">'
                '<Piece Extent="0 2 0 1 0 0"><PointData><DataArray type="Float64" Name="u" format="ascii">' + values + "</DataArray></PointData></Piece>"
                "</ImageData></VTKFile>\n")
        write_index(self.folder / "images.pvd", [(0, "states/0.vti"), (2, "states/1.vti")])
        told = self.meshard("info", "images.pvd", "--changes").out
        self.assertRegex(told, r"point +u +Float64 +1 to 6\n(.|\n)* points +constant\n(.|\n)*point +u +changes\n")
        self.assertEqual(self.series("images.pvd")["times"], [0, 2])

    def test_leaves_files_of_one_state_as_they_were(self):
        write_body(self.folder / "body.vtp")
        result = self.meshard("info", "body.vtp")
        self.assert_good(result)
        self.assertEqual(result.err, "")
        self.assertNotIn("states", result.out)
        self.assertNotIn("series", json.loads(self.meshard("info", "body.vtp", "--json").out))
        self.assert_fails(self.meshard("info", "body.vtp", "--changes"), 2, "body.vtp has one state; --changes compares several")

    def test_warns_of_missing_states(self):
        (self.folder / "states/out_0.vtp").unlink()
        result = self.meshard("info", "even.pvd")
        self.assert_good(result)
        self.assertIn("0 to 3", result.out)
        self.assertIn("warning: its states cannot be listed: even.pvd: the file of time 0, states/out_0.vtp, does not exist", result.err)
        self.assert_fails(self.meshard("info", "even.pvd", "--changes"), 3, "states/out_0.vtp, does not exist")
