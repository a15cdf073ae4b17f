// Compiled kernels (and which of them were measured to be fastest) kept in a folder that many processes share.
//
// An entry is published whole (temporary file, fsync, rename) and is believed only when its magic, key, size and
// checksum all agree. Whatever goes wrong with the folder costs speed, never an error.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cuda/sha256.h"

namespace tconv::cuda {

class DiskCache {
 public:
  // An empty name is a cache that holds nothing. The suffix tells people what the entries are.
  explicit DiskCache(std::string folder, std::string suffix = ".kernel");

  // The payload that was written under the key, or nothing when there is no entry that can be trusted.
  std::optional<std::string> read(const Digest& key) const;

  // Whether the entry is now in the folder. Creates the folder when it is missing.
  bool write(const Digest& key, std::string_view payload) const;

  std::string path_of(const Digest& key) const;

 private:
  std::string folder_;
  std::string suffix_;
};

}  // namespace tconv::cuda
