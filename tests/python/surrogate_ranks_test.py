# SPDX-License-Identifier: Apache-2.0
"""Trained models whose meshes several ranks share; one rank alone is the oracle."""
import os
import pathlib
import tempfile
import warnings

import meshard
import numpy as np

from ranks import mesh, rank, refused
from surrogate_test import PROGRAM, TOLD, trained


def test_ranks_share_a_mesh():
    if not PROGRAM.exists():
        return "there is no build folder with the programs"
    place = pathlib.Path(os.environ["MESHARD_TEST_STORE"]).with_name("trained")
    with trained() if rank() == 0 else tempfile.TemporaryDirectory() as made, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if rank() == 0:
            place.symlink_to(made[0])
        mesh().barrier()
        runs, body = [place / "runs/r1", place / "runs/r2"], place / "cases/run_4/boundary_4.vtp"
        alone, shared = meshard.load(runs, device="cpu"), meshard.load(runs, device="cpu", mesh=mesh())
        expected, found = alone.forces(body, moment_length=2, **TOLD), shared.forces(meshard.read(body), moment_length=2, **TOLD)
        assert set(found) == set(expected) > {"Cd", "Cmz"}
        assert all(abs(found[name] - expected[name]) < 1e-6 and abs(found.spread[name] - expected.spread[name]) < 1e-6 for name in found), (found, expected)
        for name, values in expected.prediction.items():
            assert np.abs(found.prediction[name] - values).max() < 1e-5 * np.abs(values).max(), name
            assert np.abs(found.prediction.spread[name] - expected.prediction.spread[name]).max() < 1e-5 * np.abs(values).max(), name
        assert (found.prediction.mesh is None) == (rank() > 0)
        if rank() == 0:
            assert np.array_equal(found.prediction.mesh.cell_data["wss"], found.prediction["wss"])
        wanted, gradient = alone.sensitivity(body, double=True, **TOLD), shared.sensitivity(body, double=True, **TOLD)
        assert np.abs(gradient.gradient - wanted.gradient).max() < 1e-9 * np.abs(wanted.gradient).max()

        # What one rank finds all raise, and go on.
        refused(lambda: shared.predict(np.zeros((5, 3)), speed=32), ValueError, "no cells to predict on")
        refused(lambda: shared.predict("none.vtp", speed=32), OSError, "none.vtp")
        for given in (body if rank() == 0 else None, body if rank() == 0 else "none.vtp"):   # the first rank reads it
            assert np.array_equal(shared.predict(given, speed=32)["pressure"], found.prediction["pressure"])
        refused(lambda: shared.predict("none.vtp" if rank() == 0 else body, speed=32), OSError, "none.vtp does not exist" if rank() == 0 else "where the first rank reads it")
        mesh().barrier()
