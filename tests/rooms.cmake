# Which room includes which: a room is a folder with sources. The test `layers` holds them to it (check_layers.cmake).
set(rooms
  "partition:"
  "partition/cut: partition partition/mesh"
  "partition/ghosts: partition partition/cut partition/mesh"
  "partition/mesh: partition"

  "io: io/bytes io/foam io/surface_files io/vtk partition partition/mesh"
  "io/bytes: partition partition/mesh"
  "io/checkpoints: io/bytes partition"
  "io/foam: io/bytes io/vtk partition partition/mesh"
  "io/picture: io/bytes partition partition/mesh"
  "io/shards: io io/bytes io/foam io/vtk partition partition/cut partition/ghosts partition/mesh"
  "io/surface_files: io/bytes io/vtk partition partition/mesh"
  "io/vtk: io/bytes partition partition/mesh"

  "sharding/exchange: partition partition/ghosts sharding/ranks sharding/tensor"
  "sharding/memory: partition sharding/tensor"
  "sharding/messages: partition"
  "sharding/parameters: partition sharding/ranks sharding/tensor"
  "sharding/ranks: partition"
  "sharding/tensor: partition partition/ghosts sharding/ranks"
  "sharding/transport: partition sharding/ranks"
  "sharding/windows: partition partition/cut partition/ghosts partition/mesh sharding/messages"

  "ops/attention: ops/fused ops/grids ops/rules ops/slices partition sharding/ranks sharding/tensor"
  "ops/cuda:"
  "ops/fields: ops/rows partition partition/ghosts partition/mesh sharding/exchange sharding/ranks sharding/tensor"
  "ops/fused: ops/rows ops/slices partition sharding/parameters sharding/tensor"
  "ops/grids: ops/rules ops/slices partition sharding/ranks sharding/tensor"
  "ops/neighbors: ops/cuda ops/rows ops/search partition partition/ghosts sharding/exchange sharding/ranks sharding/tensor"
  "ops/rows: ops/cuda partition sharding/exchange sharding/ranks sharding/tensor"
  "ops/rules: sharding/ranks sharding/tensor"
  "ops/search: partition"
  "ops/slices: ops/cuda ops/rows ops/rules partition sharding/tensor"
  "ops/surface: ops/neighbors ops/rows ops/search partition partition/mesh sharding/ranks"

  "models/geotransolver: models/layers models/transolver ops/neighbors ops/search ops/slices partition"
  "models/graph: models/layers ops/neighbors partition sharding/tensor"
  "models/grids: models/layers ops/grids ops/slices partition sharding/memory"
  "models/layers: ops/fused ops/slices partition sharding/memory"
  "models/registry: models/geotransolver models/graph models/grids models/layers models/transolver ops/neighbors partition"
  "models/transolver: models/layers ops/fused ops/slices partition"

  "apps/bench: apps/program io models/layers models/transolver ops/neighbors ops/rows partition partition/cut partition/mesh sharding/exchange sharding/parameters sharding/ranks sharding/tensor sharding/transport"
  "apps/cut: apps/program io/picture io/shards partition partition/cut partition/ghosts partition/mesh sharding/messages sharding/windows"
  "apps/plan: apps/bench apps/program models/geotransolver models/graph models/layers models/registry models/transolver ops/fused ops/slices partition sharding/parameters sharding/ranks sharding/tensor sharding/transport"
  "apps/program: io/bytes partition sharding/memory sharding/transport"
  "apps/cases: apps/settings io io/bytes io/shards models/registry ops/surface partition partition/cut partition/ghosts partition/mesh sharding/exchange sharding/ranks sharding/tensor"
  "apps/evaluation: apps/cases apps/program apps/settings io/bytes io/shards partition partition/mesh sharding/ranks"
  "apps/python: io io/shards models/geotransolver models/layers models/registry models/transolver ops/neighbors ops/rows ops/surface partition partition/cut partition/ghosts partition/mesh sharding/exchange sharding/memory sharding/parameters sharding/ranks sharding/tensor sharding/transport"
  "apps/report: apps/cases apps/evaluation apps/program apps/settings apps/training io io/bytes io/picture partition partition/mesh sharding/tensor sharding/transport"
  "apps/store: apps/cases apps/settings io/bytes io/shards models/layers partition sharding/ranks sharding/tensor"
  "apps/settings: apps/program io/bytes models/layers models/registry partition"
  "apps/training: apps/cases apps/evaluation apps/program apps/settings apps/store io io/bytes io/checkpoints io/shards models/layers models/registry partition partition/ghosts sharding/memory sharding/parameters sharding/ranks sharding/tensor sharding/transport"
  "apps/verbs: apps/bench apps/cases apps/cut apps/plan apps/program apps/report apps/settings apps/training io io/bytes io/checkpoints io/foam io/picture io/shards io/vtk ops/fields ops/neighbors ops/surface partition partition/ghosts partition/mesh sharding/memory sharding/parameters sharding/ranks sharding/tensor sharding/transport")

# Without LibTorch: for programs and libraries of others that only cut meshes. A name stands for all rooms below it, too.
set(without_torch partition io sharding/messages sharding/windows)
