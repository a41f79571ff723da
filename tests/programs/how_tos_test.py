# SPDX-License-Identifier: Apache-2.0
"""Follows two lists of docs/developing.md, a reader and a model, on a copy of the tree: files that a list does not name are not touched, and the programs
are built and know the new format and the new model. The copy is an overlay of the tree and its build folder, so that little is compiled."""
import os
import re
import shlex

from runner import PROGRAM, SOURCE, Case
from samples import CONFIGURATION, put_training

BUILD = PROGRAM.parents[1]

READER_HEADER = """// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "partition/mesh/mesh.h"

#include <filesystem>

namespace meshard {

/// Reads triangles, nine numbers a line. @throws IoError if there are others
Mesh read_toy(const std::filesystem::path& path);

}  // namespace meshard
"""

READER = """// SPDX-License-Identifier: Apache-2.0
#include "io/surface_files/toy_reader.h"

#include "partition/error.h"

#include <fstream>

namespace meshard {

Mesh read_toy(const std::filesystem::path& path)
{
    std::ifstream file(path);
    std::vector<double> numbers{std::istream_iterator<double>(file), {}};
    if (!file.eof() || numbers.empty() || numbers.size() % 9 != 0) throw IoError(path.string() + ": expected nine numbers a triangle.");
    Mesh mesh;
    mesh.kind = MeshKind::Surface;
    for (std::int32_t point = 0; point < static_cast<std::int32_t>(numbers.size() / 3); ++point) {
        mesh.cells.indices.push_back(point);
        if (point % 3 < 2) continue;
        mesh.cells.offsets.push_back(mesh.cells.num_entries());
        mesh.cell_types.push_back(5);  // a triangle of VTK
    }
    mesh.points = DataArray::from("Points", std::move(numbers), 3);
    return mesh;
}

}  // namespace meshard
"""

MODEL_HEADER = """// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "models/layers/option_table.h"

#include <torch/torch.h>

namespace meshard {

struct ToyOptions {
    std::int64_t in_dim = 1, out_dim = 1, width = 8;
};

const OptionTable<ToyOptions>& toy_option_table();

/// One hidden layer, applied to each point.
class ToyImpl : public torch::nn::Module {
public:
    explicit ToyImpl(const ToyOptions& options);
    at::Tensor forward(const at::Tensor& points);

private:
    torch::nn::Linear up_{nullptr}, down_{nullptr};
};
TORCH_MODULE(Toy);

}  // namespace meshard
"""

MODEL = """// SPDX-License-Identifier: Apache-2.0
#include "models/transolver/toy.h"

namespace meshard {

const OptionTable<ToyOptions>& toy_option_table()
{
    using O = ToyOptions;
    static const OptionTable<O> table("Toy", {{"in_dim", &O::in_dim, "channels of a point", {.least = 1}},
                                              {"out_dim", &O::out_dim, "channels of the result", {.least = 1}},
                                              {"width", &O::width, "hidden channels of a toy", {.least = 2}}});
    return table;
}

ToyImpl::ToyImpl(const ToyOptions& options)
    : up_(register_module("up", torch::nn::Linear(options.in_dim, options.width))),
      down_(register_module("down", torch::nn::Linear(options.width, options.out_dim)))
{
}

at::Tensor ToyImpl::forward(const at::Tensor& points)
{
    return down_->forward(torch::gelu(up_->forward(points)));
}

}  // namespace meshard
"""

MODEL_ENTRY = """ModelEntry toy_entry()
{
    const auto& table = toy_option_table();
    return {.name = "toy",
            .class_name = "Toy",
            .defaults = table.defaults(),
            .options = table.infos(),
            .check = [](const Json& arguments) { toy_option_table().check(toy_option_table().read(arguments)); },
            .kind = PointModel{
                .widths = [](const PointWidths& widths) -> Json { return {{"in_dim", widths.embedding_dim}, {"out_dim", widths.out_dim}}; },
                .make = [](const Json& arguments) -> MadeModel {
                    Toy model(toy_option_table().read(arguments));
                    return {model.ptr(), [model](const PointInputs& inputs) mutable { return model->forward(inputs.embedding); }};
                },
            }};
}

"""


def with_text(path, marker, text, after=False):
    """The file at `path`, with `text` before, or after, the only place of `marker`."""
    whole = (SOURCE / path).read_text()
    assert whole.count(marker) == 1, f"{path} has {whole.count(marker)} times: {marker}"
    return whole.replace(marker, marker + text if after else text + marker)


class HowTos(Case):
    timeout = 1500

    def follow(self, title, files, target, script):
        """Writes `files` into a copy of the tree, builds `target` and runs `script` there, in the test's folder."""
        section = re.search(rf"\n\*\*{title}\*\*.*?(?=\n\*\*)", (SOURCE / "docs/developing.md").read_text(), re.S).group()
        for path in files:
            named = re.sub(r"\btoy(\w*)\.(h|cpp)$", r"NAME\1.{h,cpp}", path)
            self.assertTrue(any(text in section for text in (path, named, re.sub(r"/\w+/", "/ROOM/", named))), f"{path} is not named in:{section}")
            (self.folder / "edits" / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / "edits" / path).write_text(files[path])

        overlays = [SOURCE] if BUILD.is_relative_to(SOURCE) else [SOURCE, BUILD]
        above = self.folder / "above"
        above.mkdir()
        mounts = [f"mount -t tmpfs tmpfs {above}"]
        for i, folder in enumerate(overlays):
            mounts += [f"mkdir {above}/{i} {above}/work{i}",
                       f"mount -t overlay overlay -o lowerdir={folder},upperdir={above}/{i},workdir={above}/work{i} {folder}"]
        own_space = ["unshare", "--mount", "--propagation", "private"] + ([] if os.geteuid() == 0 else ["--map-root-user"])
        if self.start(*own_space, "bash", "-ec", "\n".join(mounts)).result().code != 0:
            self.skipTest("no overlay of the tree can be mounted here")
        build = [f"cp -r edits/. {shlex.quote(str(SOURCE))}", f"cmake --build {shlex.quote(str(BUILD))} -j 2 --target {target} >build.log 2>&1 || (tail -40 build.log >&2; exit 1)"]
        result = self.run_words(*own_space, "bash", "-ec", "\n".join(mounts + build + [script]), limit=self.timeout - 60)
        self.assert_good(result)
        return result

    def test_of_a_reader_bring_a_format(self):
        (self.folder / "two.toy").write_text("0 0 0 1 0 0 0 1 0\n0 0 1 1 0 1 0 1 1\n")
        (self.folder / "half.toy").write_text("0 0 0 1\n")
        files = {"io/surface_files/toy_reader.h": READER_HEADER,
                 "io/surface_files/toy_reader.cpp": READER,
                 "io/CMakeLists.txt": with_text("io/CMakeLists.txt", "vtk/image_file.cpp", " surface_files/toy_reader.cpp", after=True),
                 "io/mesh_io.cpp": with_text("io/mesh_io.cpp", '#include "io/surface_files/stl_reader.h"\n', '#include "io/surface_files/toy_reader.h"\n', after=True).replace(
                     '    {".stl", read_stl},\n', '    {".stl", read_stl},\n    {".toy", [](const Path& path, const ReadOptions&) { return read_toy(path); }},\n')}
        result = self.follow("A reader", files, "meshard",
                             f"{PROGRAM} info two.toy; {PROGRAM} convert two.toy two.vtu; ! {PROGRAM} info half.toy; ! {PROGRAM} info none.xyz")
        self.assertIn("2 triangle", result.out)
        self.assertIn("half.toy: expected nine numbers", result.err)
        self.assertIn(".toy", result.err.splitlines()[-1])
        self.assertIn("2 triangle", self.meshard("info", "two.vtu").out)

    def test_of_a_model_bring_one_that_trains(self):
        put_training(self.folder)
        (self.folder / "toy.yaml").write_text(re.sub(r"model: {.*?}", "model: {name: toy, width: 4}", CONFIGURATION))
        library = "models/registry/library_models.cpp"
        files = {"models/transolver/toy.h": MODEL_HEADER,
                 "models/transolver/toy.cpp": MODEL,
                 "models/CMakeLists.txt": with_text("models/CMakeLists.txt", "transolver/transolver_options.cpp", " transolver/toy.cpp", after=True),
                 library: with_text(library, "}  // namespace\n\nstd::vector<ModelEntry> library_models()", MODEL_ENTRY).replace(
                     "    return {transolver_entry(),", "    return {toy_entry(), transolver_entry(),").replace(
                     '#include "models/transolver/flare.h"\n', '#include "models/transolver/flare.h"\n#include "models/transolver/toy.h"\n')}
        body = next((self.folder / "cases").rglob("*.vtp"))
        result = self.follow("A model", files, "meshard meshard-models",
                             f"{PROGRAM} train toy.yaml --nproc 2; {PROGRAM} predict runs/car {body} -o out.vtp; "
                             f"! {PROGRAM} train toy.yaml run_id=other model.width=1")
        self.assertIn("model.width", result.err.splitlines()[-1])
        self.assertIn("pressure", self.meshard("info", "out.vtp").out)
