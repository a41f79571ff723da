// SPDX-License-Identifier: Apache-2.0
#include "io/bytes/atomic_file.h"

#include "partition/error.h"

#include <fmt/core.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace meshard {

namespace {

constexpr std::size_t buffer_size = std::size_t{1} << 20;

[[noreturn]] void throw_errno(const std::filesystem::path& path, const std::string& what, int error)
{
    std::string advice;
    if (error == ENOSPC || error == EDQUOT) advice = " Free some space or write elsewhere.";
    if (error == EACCES || error == EPERM || error == EROFS) advice = " Choose a folder that you may write to.";
    throw IoError("write: {}: {}: {}.{}", path.string(), what, std::strerror(error), advice);
}

}  // namespace

std::filesystem::path followed_links(const std::filesystem::path& path)
{
    constexpr int longest_chain = 40;  // the system's limit
    std::error_code error;
    auto target = path;
    for (int i = 0; std::filesystem::is_symlink(target, error); ++i) {
        if (i == longest_chain)
            throw IoError("write: {} is a link that leads in a circle. Remove it, or choose another name.",
                          path.string());
        target = target.parent_path() / std::filesystem::read_symlink(target);  // the target of a link may be absolute
    }
    return target;
}

std::filesystem::path listed_file(const std::filesystem::path& index, const std::filesystem::path& name)
{
    std::error_code error;
    const auto beside = index.parent_path() / name;
    if (std::filesystem::exists(beside, error) || !std::filesystem::is_symlink(index, error)) return beside;
    return followed_links(index).parent_path() / name;
}

std::filesystem::path file_to_write(const std::filesystem::path& path)
{
    auto target = followed_links(path);
    std::error_code error;
    const auto status = std::filesystem::status(target, error);
    if (target.filename().empty() || std::filesystem::is_directory(status))
        throw IoError("write: {} is a folder, a file name is expected.", path.string());
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
        throw IoError("write: {} is no file but a device, a pipe or a socket. Choose another name.", path.string());
    return target;
}

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)), target_(file_to_write(path_))
{
    static std::atomic<unsigned> counter{0};

    const auto folder = target_.has_parent_path() ? target_.parent_path() : std::filesystem::path(".");
    if (!std::filesystem::is_directory(folder))
        throw IoError("write: {}: there is no folder {}. Create it first.", path_.string(), folder.string());

    const auto name = target_.filename().string().substr(0, 200);  // file systems take 255 bytes
    // In containers a process often has the id of an earlier one, which may have been killed and left its file behind.
    do {
        temporary_ = folder / fmt::format(".{}.partial-{}-{}", name, ::getpid(), counter++);
        descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && errno == EEXIST);
    if (descriptor_ < 0) throw_errno(path_, "cannot create a file in " + folder.string(), errno);
}

AtomicFile::~AtomicFile()
{
    if (descriptor_ < 0) return;
    ::close(descriptor_);
    ::unlink(temporary_.c_str());
}

void AtomicFile::reserve(std::uint64_t size)
{
    // Some file systems do not support it; then the write itself detects a full disk.
    if (size > 0 && ::fallocate(descriptor_, 0, 0, static_cast<off_t>(size)) != 0 && errno != EOPNOTSUPP &&
        errno != ENOSYS)
        throw_errno(path_, fmt::format("cannot reserve {} bytes", size), errno);
}

void AtomicFile::write(std::span<const std::byte> bytes)
{
    size_ += bytes.size();
    if (buffer_.size() + bytes.size() > buffer_size) flush();
    if (bytes.size() > buffer_size)
        write_through(bytes.data(), bytes.size());
    else
        buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void AtomicFile::write(std::string_view text)
{
    write(std::as_bytes(std::span(text.data(), text.size())));
}

void AtomicFile::flush()
{
    write_through(buffer_.data(), buffer_.size());
    buffer_.clear();
}

void AtomicFile::write_through(const std::byte* data, std::size_t size)
{
    while (size > 0) {
        throw_if_interrupted();
        const ssize_t written = ::write(descriptor_, data, size);
        if (written < 0) {
            if (errno == EINTR) continue;
            throw_errno(path_, "cannot write", errno);
        }
        data += written;
        size -= static_cast<std::size_t>(written);
    }
}

void AtomicFile::commit(bool sync)
{
    flush();
    if (sync && ::fsync(descriptor_) != 0 && errno != EINVAL) throw_errno(path_, "cannot sync to disk", errno);
    struct stat replaced = {};
    if (::stat(target_.c_str(), &replaced) == 0) ::fchmod(descriptor_, replaced.st_mode & 0777);
    if (::rename(temporary_.c_str(), target_.c_str()) != 0)
        throw_errno(path_, "cannot rename the finished file", errno);
    ::close(std::exchange(descriptor_, -1));
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text)
{
    AtomicFile file(path);
    file.write(text);
    file.commit();
}

void write_files_atomically(std::span<const FileContent> files)
{
    std::vector<std::pair<std::filesystem::path, std::filesystem::path>>
        written;  // under its temporary name, and where it shall be
    std::error_code error;
    try {
        for (const auto& [path, text] : files) {
            auto target = file_to_write(path);
            auto temporary = target;
            temporary += ".partial-" + std::to_string(::getpid());
            write_file_atomically(temporary, text);
            written.emplace_back(std::move(temporary), std::move(target));
        }
        for (const auto& [temporary, target] : written) std::filesystem::rename(temporary, target);
    } catch (...) {
        for (const auto& [temporary, target] : written) std::filesystem::remove(temporary, error);
        throw;
    }
}

}  // namespace meshard
