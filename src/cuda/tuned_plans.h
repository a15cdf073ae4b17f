// Which way of computing a problem was measured to be the fastest, kept in the cache folder.
//
// An entry is believed only when it names a kernel that this library still makes, from the very same source: a newer
// library, another GPU or a spoilt file cost the knowledge, never a wrong answer.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "core/family.h"
#include "cuda/disk_cache.h"

namespace tconv::cuda {

class TunedPlans {
 public:
  explicit TunedPlans(const std::string& folder) : disk_(folder, ".plan") {}

  // The plan that was kept for the problem on a GPU like this one.
  std::optional<Plan> find(const Problem& problem, const DeviceProperties& device,
                           std::span<const Family> families) const;

  // Keeps the candidate `name` ("tile#2") as the answer; whether it is now in the folder.
  bool keep(const Problem& problem, const DeviceProperties& device, std::span<const Family> families,
            const std::string& name) const;

  std::string path_of(const Problem& problem, const DeviceProperties& device) const;

 private:
  DiskCache disk_;
};

}  // namespace tconv::cuda
