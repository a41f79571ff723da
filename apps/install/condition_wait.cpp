// SPDX-License-Identifier: Apache-2.0
#include <condition_variable>
#include <mutex>
#include <pthread.h>

/// What the linker of a wheel puts in the place of std::condition_variable::wait(lock). GCC 12 gave that function a new
/// version, the only one in all of meshard that the C++ library of GCC 11 lacks: the one of RHEL 9, which many clusters
/// run.
extern "C" void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable* condition,
                                                                                 std::unique_lock<std::mutex>* lock)
{
    pthread_cond_wait(condition->native_handle(), lock->mutex()->native_handle());
}
