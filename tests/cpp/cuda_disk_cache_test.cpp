#include "cuda/disk_cache.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace tconv::cuda {
namespace {

namespace fs = std::filesystem;

std::string random_payload(std::size_t size) {
  std::mt19937_64 engine(std::random_device{}());
  std::string payload(size, '\0');
  for (char& byte : payload) byte = static_cast<char>(engine());
  return payload;
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void overwrite(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

class DiskCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "tconv-cache-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
  }
  void TearDown() override {
    fs::permissions(root_, fs::perms::owner_all);
    fs::remove_all(root_);
  }

  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(root_), fs::directory_iterator()));
  }

  std::string root_;
};

TEST_F(DiskCacheTest, ReturnsWhatWasWritten) {
  const DiskCache cache(root_ + "/made/when/needed");
  const Digest key = sha256("a kernel");
  EXPECT_FALSE(cache.read(key).has_value());
  for (const std::size_t size : {0UL, 1UL, 100'000UL}) {
    const std::string payload = random_payload(size);
    ASSERT_TRUE(cache.write(key, payload));
    EXPECT_EQ(cache.read(key), payload);
  }
  EXPECT_FALSE(cache.read(sha256("another kernel")).has_value());
}

TEST_F(DiskCacheTest, LeavesNoTemporaryFile) {
  const DiskCache cache(root_);
  ASSERT_TRUE(cache.write(sha256("one"), "1"));
  ASSERT_TRUE(cache.write(sha256("two"), "2"));
  ASSERT_TRUE(cache.write(sha256("two"), "3"));
  EXPECT_EQ(files(), 2U);
}

TEST_F(DiskCacheTest, RefusesEveryTruncationAndReplacesIt) {
  const DiskCache cache(root_);
  const Digest key = sha256("a kernel");
  const std::string payload = random_payload(200);
  ASSERT_TRUE(cache.write(key, payload));
  const std::string whole = contents(cache.path_of(key));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    overwrite(cache.path_of(key), whole.substr(0, size));
    ASSERT_FALSE(cache.read(key).has_value()) << "cut to " << size << " bytes";
  }
  overwrite(cache.path_of(key), whole + "x");
  EXPECT_FALSE(cache.read(key).has_value());
  ASSERT_TRUE(cache.write(key, payload));
  EXPECT_EQ(cache.read(key), payload);
}

TEST_F(DiskCacheTest, RefusesEveryFlippedBit) {
  const DiskCache cache(root_);
  const Digest key = sha256("a kernel");
  ASSERT_TRUE(cache.write(key, random_payload(64)));
  const std::string whole = contents(cache.path_of(key));
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    overwrite(cache.path_of(key), damaged);
    ASSERT_FALSE(cache.read(key).has_value()) << "bit " << bit;
  }
}

TEST_F(DiskCacheTest, RefusesForeignEntries) {
  const DiskCache cache(root_);
  const Digest key = sha256("a kernel");
  ASSERT_TRUE(cache.write(sha256("another kernel"), "payload"));
  fs::copy(cache.path_of(sha256("another kernel")), cache.path_of(key));
  EXPECT_FALSE(cache.read(key).has_value()) << "an entry under another's name";
  fs::remove(cache.path_of(key));
  fs::create_directory(cache.path_of(key));
  EXPECT_FALSE(cache.read(key).has_value()) << "a folder";
  EXPECT_FALSE(cache.write(key, "payload"));
  fs::remove(cache.path_of(key));
  ASSERT_EQ(::mkfifo(cache.path_of(key).c_str(), 0600), 0);
  EXPECT_FALSE(cache.read(key).has_value()) << "a pipe";
  ASSERT_TRUE(cache.write(key, "payload"));
  EXPECT_EQ(cache.read(key), "payload");
}

TEST_F(DiskCacheTest, WithoutAFolderItHoldsNothing) {
  const DiskCache cache("");
  EXPECT_FALSE(cache.write(sha256("a kernel"), "payload"));
  EXPECT_FALSE(cache.read(sha256("a kernel")).has_value());
}

TEST_F(DiskCacheTest, AnUnusableFolderCostsSpeedOnly) {
  // A file where the folder should be stops every user, root too; a read-only folder stops everyone but root.
  overwrite(root_ + "/file", "in the way");
  const DiskCache blocked(root_ + "/file/cache");
  EXPECT_FALSE(blocked.write(sha256("a kernel"), "payload"));
  EXPECT_FALSE(blocked.read(sha256("a kernel")).has_value());

  const std::string folder = root_ + "/read-only";
  fs::create_directory(folder);
  const DiskCache cache(folder);
  ASSERT_TRUE(cache.write(sha256("before"), "payload"));
  fs::permissions(folder, fs::perms::owner_read | fs::perms::owner_exec);
  const bool written = cache.write(sha256("after"), "payload");
  EXPECT_EQ(written, ::geteuid() == 0);
  EXPECT_EQ(cache.read(sha256("before")), "payload");
  EXPECT_EQ(cache.read(sha256("after")).has_value(), written);
  fs::permissions(folder, fs::perms::owner_all);
}

TEST_F(DiskCacheTest, AFullDiskLeavesNoEntry) {
  // A limit on the size of files stands in for the disk's; it binds a child process only.
  const DiskCache cache(root_);
  const Digest key = sha256("a kernel");
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit none{16, 16};
    const bool limited = ::setrlimit(RLIMIT_FSIZE, &none) == 0;
    ::_exit(limited && !cache.write(key, std::string(1000, 'x')) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_FALSE(cache.read(key).has_value());
  EXPECT_EQ(files(), 0U) << "the temporary file must be removed";
}

// Readers must see nothing or one writer's whole payload, never a mixture.
bool race(const DiskCache& cache, const Digest& key, int seed) {
  const std::string payload(20'000, static_cast<char>('a' + seed % 26));
  bool right = true;
  for (int round = 0; round < 40; ++round) {
    right = cache.write(key, payload) && right;
    const std::optional<std::string> found = cache.read(key);
    right = right && found.has_value() && found->size() == payload.size() &&
            found->find_first_not_of(found->front()) == std::string::npos;
  }
  return right;
}

TEST_F(DiskCacheTest, ManyThreads) {
  const DiskCache cache(root_);
  const Digest key = sha256("a kernel");
  std::atomic<int> right{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) threads.emplace_back([&, i] { right += race(cache, key, i) ? 1 : 0; });
  }
  EXPECT_EQ(right, 8);
  EXPECT_EQ(files(), 1U);
}

TEST_F(DiskCacheTest, ManyProcesses) {
  const DiskCache cache(root_);
  const Digest key = sha256("a kernel");
  std::vector<pid_t> children;
  for (int i = 0; i < 6; ++i) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) ::_exit(race(cache, key, i) ? 0 : 1);
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  EXPECT_EQ(files(), 1U);
}

}  // namespace
}  // namespace tconv::cuda
