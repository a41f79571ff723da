// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/messages/agreement.h"
#include "sharding/ranks/device_mesh.h"
#include "sharding/transport/carrier.h"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace meshard {

/// This process's rank and the number of ranks, and where they were read from.
struct LaunchInfo {
    int rank = 0;
    int size = 1;
    int local_rank = 0;
    std::string source = "single";  ///< `environment` (torchrun and alike), `slurm`, `openmpi`, `pmi`, `single`
    std::string rendezvous;         ///< `tcp://host:port` or `file:///path`; empty for one rank
};

/// Reads, in this order: RANK and WORLD_SIZE (torchrun, and our own `--nproc`), SLURM_*, OMPI_COMM_WORLD_*, PMI_*; else one rank.
/// MESHARD_LAUNCH=env|slurm|ompi|pmi|single pins the choice. The rendezvous is MESHARD_RENDEZVOUS, else MASTER_ADDR and MASTER_PORT, else
/// derived from what the launcher tells. @throws InvalidInput naming the variable that is missing or no number, MESHARD_TIMEOUT_SECONDS too.
LaunchInfo detect_launch();

/// Time limit of every wait for other ranks, where nothing else is set.
inline constexpr double kTimeoutSeconds = 300;

/// The connected ranks of this run. Keep it alive as long as any group made from it.
class World : public GroupFactory {
public:
    /// Connects: over MPI when started by mpirun or srun on CPUs, else through shared memory where all ranks are on one host, else over Gloo;
    /// tensors of GPUs go over NCCL where each rank has one of its own. MESHARD_BACKEND=shm|gloo|mpi|nccl pins the choice. Collective over all ranks.
    /// Every wait has a time limit, MESHARD_TIMEOUT_SECONDS if set.
    /// @param device   on which this rank computes, of the same type on every rank: MPI carries tensors of CPUs only
    /// @param facts    what all ranks must have in common besides their number, the type of their devices and the environment variables MESHARD_...
    /// @throws CommunicationError naming the ranks that did not come within the time limit
    /// @throws RanksDisagree where ranks were started differently; of mpirun's, all but the lowest throw FailedElsewhere
    static std::unique_ptr<World> connect(const LaunchInfo& info, double timeout_seconds = kTimeoutSeconds, at::Device device = at::kCPU, Facts facts = {});

    /// Orderly end: waits for all ranks, then closes the connections. Without it (after an error) the destructor closes at once, so that waiting ranks fail
    /// instead of hanging.
    virtual void finish() = 0;
    at::Device device() const { return device_; }  ///< on which this rank computes

    virtual std::string backend_name() const = 0;  ///< `shm`, `gloo`, `mpi`, `none`

    /// What carries tensors of a device between the ranks. Collective over all ranks; call it when the first device mesh has been made, and the device is
    /// current. @throws CommunicationError if the transport that MESHARD_BACKEND wants cannot connect
    virtual Carrier carrier(const at::Device& device);

private:
    at::Device device_ = at::kCPU;
};

/// Starts `size` copies of this program as ranks 0..size-1 on this machine, with `arguments` (those after the program's name), and waits
/// for them.
///
/// Returns when all have ended: 0 if all succeeded. When one fails, the others have `grace_seconds` to stop by themselves and are then killed; the first
/// failure is printed to stderr, in one sentence that names the rank. Returns that rank's exit code, or 5 if a signal ended it. Passes on every SIGINT, SIGTERM
/// and SIGHUP: ranks may get one twice, from the terminal and from here. If they end the ranks, the exit code is 130, or that of an error that a rank has
/// while it ends.
int run_local_ranks(int size, const std::vector<std::string>& arguments, double grace_seconds = 10);

/// Called by a rank that fails, before it ends: leaves its message where `run_local_ranks` finds it, so that the first error is the one
/// shown. Returns false if this process was not started that way (the caller then prints the message itself).
bool report_failure_to_launcher(const std::string& message, bool is_consequence);

/// Called by a rank that fails: tells the other ranks, if they still wait for it in a store that rank 0 serves. Takes some seconds at most.
void report_failure_to_ranks(const std::string& message);

}  // namespace meshard
