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

/// This process's rank and the number of ranks, and the source of both.
struct LaunchInfo {
    int rank = 0;
    int size = 1;
    int local_rank = 0;
    std::string source = "single";  ///< `environment` (torchrun and the like), `slurm`, `openmpi`, `pmi`, `single`
    std::string rendezvous;         ///< `tcp://host:port` or `file:///path`; empty for one rank
};

/// Reads, in this order: RANK and WORLD_SIZE (torchrun, and our own `--nproc`), SLURM_*, OMPI_COMM_WORLD_*, PMI_*;
/// otherwise there is one rank. MESHARD_LAUNCH=env|slurm|ompi|pmi|single selects one of them. The rendezvous is
/// MESHARD_RENDEZVOUS, else MASTER_ADDR and MASTER_PORT, else derived from the launcher's variables.
/// @throws LaunchError naming the variable that is missing or not a number, MESHARD_TIMEOUT_SECONDS included
LaunchInfo detect_launch();

/// Default time limit of every wait for other ranks.
inline constexpr double kTimeoutSeconds = 300;

/// The connected ranks of this run. Keep it alive as long as any group made from it.
class World : public GroupFactory {
public:
    /// Connects over MPI if started by mpirun or srun on CPUs, else through shared memory if all ranks are on one host,
    /// else over Gloo; tensors of GPUs use NCCL if each rank has its own GPU. MESHARD_BACKEND=shm|gloo|mpi|nccl selects
    /// one. Collective over all ranks. Every wait has a time limit, MESHARD_TIMEOUT_SECONDS if set.
    /// @param device   device on which this rank computes, of the same type on every rank: MPI carries CPU tensors only
    /// @param facts    what must be equal on all ranks besides their number, the type of their devices and the
    ///                 environment variables MESHARD_...
    /// @throws CommunicationError naming the ranks that did not connect within the time limit
    /// @throws LaunchError if two processes have one rank, or MESHARD_BACKEND selects what cannot connect these ranks
    /// @throws RanksDisagree if ranks were started differently; under mpirun all but the lowest throw FailedElsewhere
    static std::unique_ptr<World> connect(const LaunchInfo& info, double timeout_seconds = kTimeoutSeconds,
                                          at::Device device = at::kCPU, Facts facts = {});

    /// Orderly end: waits for all ranks, then closes the connections. Without it (after an error) the destructor closes
    /// at once, so that waiting ranks fail instead of hanging. @throws CommunicationError if a rank ended without it
    virtual void finish() = 0;
    at::Device device() const { return device_; }  ///< device on which this rank computes

    virtual std::string backend_name() const = 0;  ///< `shm`, `gloo`, `mpi`, `none`

    /// The transport that carries tensors of a device between the ranks. Collective over all ranks; call it after the
    /// first device mesh has been made, with the device current. @throws CommunicationError if the transport that
    /// MESHARD_BACKEND selects cannot connect
    virtual Carrier carrier(const at::Device& device);

private:
    at::Device device_ = at::kCPU;
};

/// Starts `size` copies of this program as ranks 0..size-1 on this machine, with `arguments` (without the program's
/// name), and waits for them.
///
/// Returns when all have ended: 0 if all succeeded. When one fails, the others are killed if they do not end within
/// `grace_seconds`; the first failure is printed to stderr, in one sentence that names the rank, and that rank's exit
/// code is returned, or 5 if a signal ended it. Passes on every SIGINT, SIGTERM and SIGHUP: ranks may get one twice,
/// from the terminal and from here. If they end the ranks, the exit code is 130, or that of an error that occurs on a
/// rank while it ends.
int run_local_ranks(int size, const std::vector<std::string>& arguments, double grace_seconds = 10);

/// As `run_local_ranks`, with forks of this process: each goes on after this call, which returns nothing there, and
/// has all that was loaded and read before, in memory that it shares until it writes. Only for a process that has not
/// used a GPU and whose other threads, which the ranks lack, hold no locks and are not waited for. If it has handlers
/// of SIGINT, that and SIGHUP are blocked in the ranks, so that they can change what these do.
std::optional<int> fork_local_ranks(int size, double grace_seconds = 10);

/// Called by a rank that fails, before it ends: writes its message to where `run_local_ranks` looks for it, so that the
/// first error is the one shown. Returns false if this process was not started by `run_local_ranks` (the caller then
/// prints the message itself).
bool report_failure_to_launcher(const std::string& message, bool is_consequence);

/// Called by a rank that fails: sends the message to other ranks that still wait for this one in a store that rank 0
/// serves. Takes some seconds at most.
void report_failure_to_ranks(const std::string& message);

}  // namespace meshard
