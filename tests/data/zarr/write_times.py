#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes times.zip, arrays in time by the Python packages xarray (2026.9), zarr (3.1), h5netcdf and h5py: `python3 write_times.py` in an environment with them.

Each file has 5 steps at 0, 6, 12, 24 and 30 hours, and 3 x 4 places (y, x). The value at a place is the number of the place, x fastest, 100 more for each step, and
1000 more for each component; `land`, which has no time, has the number of the place, and so have `packed` (int16), `salt` (1e20 where it is missing) and `kind`
(int32), which lack it at places 5 and 6."""
import pathlib
import tempfile
import zipfile

import h5py
import numpy
import xarray

HOURS = numpy.array([0, 6, 12, 24, 30])
PLACES = numpy.arange(12).reshape(3, 4)
STEPS = PLACES + 100 * numpy.arange(5).reshape(5, 1, 1)
FIRST = (STEPS[:, None] + 1000 * numpy.arange(2).reshape(1, 2, 1, 1)).astype("float32")
HOLED = numpy.where((PLACES == 5) | (PLACES == 6), numpy.nan, PLACES)
UNITS = {"time": {"units": "hours since 2020-01-01", "dtype": "int64"}, "packed": {"dtype": "int16", "scale_factor": 0.25, "add_offset": 7.0, "_FillValue": -32767},
         "salt": {"_FillValue": 1e20, "dtype": "float32"}, "kind": {"missing_value": -1, "_FillValue": -1, "dtype": "int32"}}

folder = pathlib.Path(tempfile.mkdtemp())
data = xarray.Dataset(
    {"u": (("time", "y", "x"), STEPS.astype("float64")), "wind": (("time", "component", "y", "x"), FIRST), "land": (("y", "x"), PLACES.astype("float32")),
     "packed": (("y", "x"), HOLED), "salt": (("y", "x"), HOLED), "kind": (("y", "x"), HOLED)},
    coords={"time": numpy.datetime64("2020-01-01", "ns") + HOURS.astype("timedelta64[h]"), "x": numpy.arange(4) * 0.5})
data.to_zarr(folder / "xarray.zarr", zarr_format=3, consolidated=False, encoding={**UNITS, "u": {"chunks": (2, 2, 3)}})
holed = ["packed", "salt", "kind"]
data.drop_vars(holed).to_netcdf(folder / "xarray.h5", engine="h5netcdf", encoding={"time": UNITS["time"]})
data[holed].to_netcdf(folder / "packed.h5", engine="h5netcdf", encoding={name: UNITS[name] for name in holed})

with h5py.File(folder / "plain.h5", "w") as file:  # without names of dimensions
    file["time"] = HOURS
    file["u"] = STEPS
    file["wind"] = numpy.moveaxis(FIRST, 1, 3)
    file["land"] = PLACES

with h5py.File(folder / "labels.h5", "w") as file:
    file["air/t"] = HOURS
    file["air/t"].attrs["units"] = "h"
    file["air/u"] = STEPS
    file["air/t"].make_scale("t")
    file["air/u"].dims[0].attach_scale(file["air/t"])  # the name of one dimension by its scale, those of the others by labels
    for dim, name in ((1, "y"), (2, "x")):
        file["air/u"].dims[dim].label = name
    file["air/wind"] = numpy.moveaxis(FIRST, 0, 1)
    file["air/wind"].dims[1].label = "t"
    file["packed"] = PLACES
    file["packed"].attrs["scale_factor"] = 0.5
    file["bytes"] = PLACES.astype("int8")
    file["bytes"].attrs["_Unsigned"] = "true"

with zipfile.ZipFile(pathlib.Path(__file__).parent / "times.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            archive.writestr(zipfile.ZipInfo(str(path.relative_to(folder))), path.read_bytes(), zipfile.ZIP_DEFLATED)
