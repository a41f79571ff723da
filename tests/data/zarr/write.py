#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes forms.zip, a group of Zarr arrays in many forms, by the Python package `zarr` (3.1): `python3 write.py` in an environment with `zarr` and `numpy`.

Each array has 4 x 5 x 6 places (z, y, x), those named `..._first` and `..._last` three components in another dimension. The value at a place is the number of the
place, x fastest, and 1000 more for each component. `absent` has its numbers for z < 3 and elsewhere its fill value, 7.5."""
import pathlib
import zipfile

import numpy
import zarr
import zarr.codecs as codecs

SHAPE = (4, 5, 6)
PLACES = numpy.arange(120).reshape(SHAPE)
FIRST = PLACES + 1000 * numpy.arange(3).reshape(3, 1, 1, 1)
NAMES = ("z", "y", "x")
SMALL = {"chunks": (3, 3, 4), "dimension_names": NAMES}

store = zarr.storage.MemoryStore()
root = zarr.create_group(store, zarr_format=3)


def add(name, values, **how):
    how = {**SMALL, **how}
    root.create_array(name, shape=values.shape, dtype=how.pop("dtype", "float32"), **how)[...] = values


add("zstd", PLACES)
add("gzip", PLACES, dtype="int16", compressors=codecs.GzipCodec(level=3))
add("blosc", PLACES, dtype="float64", compressors=codecs.BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=8))
add("checked", PLACES, dtype="uint8", compressors=[codecs.Crc32cCodec(), codecs.ZstdCodec(level=1, checksum=True), codecs.Crc32cCodec()])
add("raw", PLACES, dtype="int64", compressors=None, chunk_key_encoding={"name": "v2", "separator": "."})
add("big", PLACES, serializer=codecs.BytesCodec(endian="big"), compressors=None, chunk_key_encoding={"name": "default", "separator": "."})
add("turned", PLACES, filters=codecs.TransposeCodec(order=(2, 0, 1)))
add("shards", PLACES, chunks=(2, 3, 3), shards=(4, 6, 3))
add("shards_begin", PLACES, chunks=(1, 5, 2), serializer=codecs.ShardingCodec(chunk_shape=(1, 5, 2), index_location="start", index_codecs=[codecs.BytesCodec()]),
    compressors=None)
add("inner/components_last", numpy.moveaxis(FIRST, 0, 3), chunks=(3, 3, 4, 2), dimension_names=(*NAMES, "component"))
add("inner/components_first", FIRST, dtype="float64", chunks=(2, 4, 5, 6), dimension_names=("c", *NAMES))
root.create_array("absent", shape=SHAPE, dtype="float32", fill_value=7.5, **SMALL)[:3] = PLACES[:3]
root.create_array("half", shape=SHAPE, dtype="float16", **SMALL)
root.create_array("z", shape=(4,), dtype="float64", dimension_names=("z",))[...] = [1, 1.5, 2, 2.5]
root.create_array("x", shape=(6,), dtype="float64", dimension_names=("x",))[...] = [0, 1, 2, 4, 8, 16]
root.create_array("table", shape=(10, 2), dtype="float64", dimension_names=("row", "column"))

with zipfile.ZipFile(pathlib.Path(__file__).parent / "forms.zip", "w", zipfile.ZIP_DEFLATED) as archive:
    for key, value in sorted(store._store_dict.items()):
        archive.writestr(zipfile.ZipInfo(key), value.to_bytes())
