#include "cuda/disk_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/env.h"

namespace tconv::cuda {
namespace {

// The entry's first bytes. All members are bytes or 64-bit numbers, so the struct has no padding.
struct Header {
  std::array<char, 8> magic;
  Digest key;
  std::uint64_t payload_bytes;
  Digest checksum;  // of key and payload
};
static_assert(sizeof(Header) == 80);

// The last character is the version of this format.
constexpr std::array<char, 8> kMagic = {'t', 'c', 'o', 'n', 'v', 'k', 'c', '1'};

class File {
 public:
  File(const std::string& path, int flags, mode_t mode = 0)
      : descriptor_(::open(path.c_str(), flags | O_CLOEXEC, mode)) {}
  ~File() { close(); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  bool close() {
    const int descriptor = std::exchange(descriptor_, -1);
    return descriptor < 0 || ::close(descriptor) == 0;
  }

 private:
  int descriptor_;
};

bool write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

bool read_all(int descriptor, char* bytes, std::size_t size) {
  while (size > 0) {
    const ssize_t count = ::read(descriptor, bytes, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

Digest checksum_of(const Digest& key, std::string_view payload) {
  std::string text(reinterpret_cast<const char*>(key.data()), key.size());
  text += payload;
  return sha256(text);
}

// Different for every process and for every write within one.
std::string temporary_suffix() {
  static std::atomic<std::uint64_t> counter{0};
  return "." + std::to_string(::getpid()) + "." + std::to_string(counter.fetch_add(1)) + ".tmp";
}

}  // namespace

DiskCache::DiskCache(std::string folder, std::string suffix) : folder_(std::move(folder)), suffix_(std::move(suffix)) {}

std::string DiskCache::path_of(const Digest& key) const { return folder_ + "/" + to_hex(key) + suffix_; }

std::optional<std::string> DiskCache::read(const Digest& key) const {
  if (folder_.empty()) return std::nullopt;
  const std::string path = path_of(key);
  // Without O_NONBLOCK a pipe of that name would hang the process.
  const File file(path, O_RDONLY | O_NONBLOCK);
  if (!file.is_open()) return std::nullopt;
  const auto reject = [&path](const char* why) {
    log(1, "cache entry " + path + " is ignored: " + why);
    return std::nullopt;
  };
  struct stat status{};
  if (::fstat(file.descriptor(), &status) != 0 || !S_ISREG(status.st_mode)) return reject("not a regular file");
  Header header{};
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size < sizeof header) return reject("truncated");
  if (!read_all(file.descriptor(), reinterpret_cast<char*>(&header), sizeof header)) return reject("cannot be read");
  if (header.magic != kMagic) return reject("written by something else");
  if (header.key != key) return reject("belongs to another key");
  if (header.payload_bytes != size - sizeof header) return reject("truncated");
  std::string payload(header.payload_bytes, '\0');
  if (!read_all(file.descriptor(), payload.data(), payload.size())) return reject("cannot be read");
  if (checksum_of(key, payload) != header.checksum) return reject("its checksum does not match");
  return payload;
}

bool DiskCache::write(const Digest& key, std::string_view payload) const {
  if (folder_.empty()) return false;
  std::error_code ignored;
  std::filesystem::create_directories(folder_, ignored);
  const std::string path = path_of(key);
  const std::string temporary = path + temporary_suffix();
  const auto fail = [&](const char* what) {
    log(1, "kernel cache: " + std::string(what) + " " + temporary + ": " + std::strerror(errno));
    return false;
  };
  File file(temporary, O_WRONLY | O_CREAT | O_EXCL, 0644);
  if (!file.is_open()) return fail("cannot create");

  const Header header{kMagic, key, payload.size(), checksum_of(key, payload)};
  const bool written = write_all(file.descriptor(), {reinterpret_cast<const char*>(&header), sizeof header}) &&
                       write_all(file.descriptor(), payload) && ::fsync(file.descriptor()) == 0;
  const bool published = written && file.close() && ::rename(temporary.c_str(), path.c_str()) == 0;
  if (!published) {
    fail("cannot write");
    ::unlink(temporary.c_str());
  }
  return published;
}

}  // namespace tconv::cuda
